"""A model's side of generation: its tokenizer and its folder's rules; prompts and options to answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.ir import Program, Role
from headrace.runtime.generate.answer import Answer, Model, Start, begin_answers
from headrace.runtime.generate.options import find_beams, read_options
from headrace.runtime.generate.prompts import Ids, Prompts

if TYPE_CHECKING:
    from headrace.runtime.engine.decoding import DecodingLoop
    from headrace.runtime.generate.beam_group import BeamGroup

NO_IDS = np.empty(0, np.int64)


class Asked(NamedTuple):
    """One prompt and the answers that are to be made to it."""

    ids: Ids
    answers: list[Answer | BeamGroup]


class Writer:
    """One a model, used from any thread."""

    def __init__(self, program: Program, width: int, tokenizer: Any, max_length: int | None = None) -> None:
        """Read nothing yet.

        Args:
            program: the whole model's, for its facts.
            width: how many tokens the head has logits for.
            tokenizer: of transformers, a `PlainTokenizer`, or None.
            max_length: the user's own limit of a prompt in tokens.
        """
        decoding = program.facts.decoding
        assert decoding is not None, "the program of a language model"
        self._arrays = bool(program.signature.arrays)
        self.encodes = program.signature.has(Role.TARGET_IDS)
        limits = program.facts.target_limits if self.encodes else program.facts.limits
        self._model = Model(decoding, width, limits.length if limits else None, tokenizer)
        self._prompts = Prompts(tokenizer, program, max_length)

    def asked(
        self, loop: DecodingLoop, prompts: Any, template: Mapping[str, Any] | None, **given: Any
    ) -> list[Asked]:  # fmt: skip
        """The answers that are to be made, `n` a prompt, or one by a beam search.

        Args:
            loop: that they are made by.
            prompts: of a model whose encoder reads arrays, a list of those.
            template: options of the tokenizer's chat template.
            given: of `GenerateOptions`; None leaves one to the folder.

        Raises:
            InputError: a prompt or an option that is not as accepted.
            InputTooLongError: a prompt that leaves no room for a token.
        """
        options = read_options(self._model.decoding, **given)
        beams = find_beams(options, self._model.decoding, self._model.width)
        read = [NO_IDS] * len(prompts) if self._arrays else self._prompts.read(prompts, template)
        if beams is None:
            return [Asked(ids, [*begin_answers(self._model, ids, options, self.encodes)]) for ids in read]
        from headrace.runtime.generate.beam_group import BeamGroup

        starts = [Start(self._model, ids, options, self.encodes) for ids in read]
        return [
            Asked(ids, [BeamGroup(start, beams, self._model.width, loop)])
            for ids, start in zip(read, starts, strict=True)
        ]
