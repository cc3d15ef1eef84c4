"""A model's side of generation: its tokenizer and its folder's rules; prompts and options to answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace.ir import Program, Role
from headrace.runtime.generate.answer import Answer, Model, begin_answers
from headrace.runtime.generate.options import find_beams, read_options
from headrace.runtime.generate.prompts import Ids, Prompts

NO_IDS = np.empty(0, np.int64)


class Asked(NamedTuple):
    """One prompt and the answers that are to be made to it."""

    ids: Ids
    answers: list[Answer]


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

    def asked(self, prompts: Any, template: Mapping[str, Any] | None, **given: Any) -> list[Asked]:
        """The answers that are to be made, `n` a prompt.

        Args:
            prompts: of a model whose encoder reads arrays, a list of those.
            template: options of the tokenizer's chat template.
            given: of `GenerateOptions`; None leaves one to the folder.

        Raises:
            InputError: a prompt or an option that is not as accepted.
            InputTooLongError: a prompt that leaves no room for a token.
        """
        options = read_options(self._model.decoding, **given)
        if (beams := find_beams(options, self._model.decoding)) is not None:
            raise InputError(
                f"A beam search of {beams.count} is asked for (by beams, or by num_beams of the folder's "
                "generation_config.json), which this version does not run. Pass beams=1 to follow one continuation."
            )
        read = [NO_IDS] * len(prompts) if self._arrays else self._prompts.read(prompts, template)
        return [Asked(ids, begin_answers(self._model, ids, options, self.encodes)) for ids in read]
