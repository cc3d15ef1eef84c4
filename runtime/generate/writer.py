"""A model's side of generation: its tokenizer, its folder's rules and its grammars; prompts and options to answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.ir import Program, Role
from headrace.runtime.generate.answer import Answer, Model, seed_of
from headrace.runtime.generate.detokenizer import Vocabulary
from headrace.runtime.generate.guided import Grammars
from headrace.runtime.generate.options import GenerateOptions, read_options
from headrace.runtime.generate.prompts import Prompts

NO_IDS = np.empty(0, np.int64)


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
        self._encodes, self._arrays = program.signature.has(Role.TARGET_IDS), bool(program.signature.arrays)
        limits = program.facts.target_limits if self._encodes else program.facts.limits
        self._model = Model(decoding, width, limits.length if limits else None, tokenizer)
        self._prompts = Prompts(tokenizer, program, max_length)
        self._grammars = Grammars(tokenizer, width, decoding.ends)

    def answers(self, prompts: Any, template: Mapping[str, Any] | None, **given: Any) -> list[tuple[int, Answer]]:
        """The answers that are to be made, `n` a prompt, each with the place of its prompt.

        Args:
            prompts: of a model whose encoder reads arrays, a list of those.
            template: options of the tokenizer's chat template.
            given: of `GenerateOptions`; None leaves one to the folder.

        Raises:
            InputError: a prompt or an option that is not as accepted.
            InputTooLongError: a prompt that leaves no room for a token.
        """
        options = read_options(self._model.decoding, **given)
        grammar = self._grammars.read(options)
        read = [NO_IDS] * len(prompts) if self._arrays else self._prompts.read(prompts, template)
        vocabulary = Vocabulary(self._model.tokenizer, options.skip_special_tokens) if self._model.tokenizer else None
        return [
            (place, Answer(
                self._model, ids, options, source=self._encodes, index=index, seed=_seed(options, index),
                vocabulary=vocabulary, matcher=grammar.begin() if grammar else None,
            ))
            for place, ids in enumerate(read) for index in range(options.n)
        ]  # fmt: skip


def _seed(options: GenerateOptions, index: int) -> int | None:
    return None if options.seed is None else seed_of(options.seed, index)
