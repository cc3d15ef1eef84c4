"""What is to be continued, in whichever form it comes, as token ids."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, InputTooLongError
from headrace.ir import Program
from headrace.runtime.places import Places
from headrace.runtime.text.prefetch import PACKED
from headrace.runtime.text.prompts import require_unicode
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.tokenizer.reader import Reader
from headrace.runtime.text.truncation import Piece
from headrace.runtime.text.validate import many

Ids = NDArray[np.int64]
ACCEPTED = "a text, a chat (a list of mappings with role and content) or a sequence of token ids"


class Prompts:
    """A model's tokenizer as prompts go through it; built once a model, used from any thread."""

    def __init__(self, tokenizer: Any, program: Program, max_length: int | None = None) -> None:
        """Ask nothing yet.

        Args:
            tokenizer: a transformers tokenizer, None for a model that is prompted with token ids alone.
            max_length: the user's own limit of a prompt in tokens.
        """
        self._tokenizer = tokenizer
        self._texts = Texts(tokenizer, program, max_length)
        self._rendered = Reader(tokenizer, typed=False, alone=True)

    def read(self, prompts: Any, template: Mapping[str, Any] | None = None) -> list[Ids]:
        """The token ids of a prompt, or of many, int64 [p] each.

        A list is many prompts, unless it holds messages or numbers: then it is one chat, or the ids of one prompt.

        Args:
            template: options of the tokenizer's chat template, such as tools.

        Raises:
            InputError: something that is none, a chat without a template, ids outside the vocabulary.
            InputTooLongError: more tokens than the model reads.
        """
        listed = [prompts] if _is_one(prompts) else list(prompts)
        found: list[Ids] = []
        for texts, run in groupby(listed, lambda one: isinstance(one, str)):
            if texts:
                found += (
                    one.ids
                    for one in self._texts.encode(
                        run, truncate=False, prompt="", places=Places(len(found)), cuttable=False
                    )
                )
            else:
                found += (self._ids(one, number, template) for number, one in enumerate(run, len(found)))
        return found

    def _ids(self, prompt: Any, number: int, template: Mapping[str, Any] | None) -> Ids:
        """Of a chat, or of what must be ids."""
        if _is_chat(prompt):
            prompt = self._rendered_ids(self._render(prompt, number, template))
        if not many(prompt, f"Prompt {number}") or isinstance(prompt, bytes):
            raise InputError(f"Prompt {number} is {reprlib.repr(prompt)}; {ACCEPTED} is accepted.")
        try:
            _, parts = self._texts.raw([prompt], None, PACKED)
            return next(parts)[0].ids
        except InputTooLongError as error:
            raise InputTooLongError(f"Prompt {number}: {error}") from None
        except InputError as error:
            raise InputError(f"Prompt {number}: {error}") from None

    def _rendered_ids(self, text: str) -> Ids:
        """Of a text that has the tokenizer's own tokens in it already."""
        return self._rendered.read([Piece((text,))])[0].ids

    def _render(self, messages: Sequence[Any], number: int, template: Mapping[str, Any] | None) -> str:
        """A chat as the template writes it, up to where the model's answer begins."""
        for one in messages:
            if not isinstance(one, Mapping) or not isinstance(one.get("role"), str) or "content" not in one:
                raise InputError(
                    f"Prompt {number} has the message {reprlib.repr(one)}; a mapping with role and content is accepted."
                )
        if not getattr(self._tokenizer, "chat_template", None):
            lacks = "the model has no tokenizer" if self._tokenizer is None else "the tokenizer has no chat template"
            raise InputError(
                f"Prompt {number} is a chat, and {lacks}. Pass a tokenizer with one as tokenizer=, or the text of the "
                "chat as the model was trained on it."
            )
        options = {"tokenize": False, "add_generation_prompt": True, **(template or {})}
        try:
            text = str(self._tokenizer.apply_chat_template([dict(one) for one in messages], **options))
        except Exception as error:  # of jinja, or raised by the template itself
            raise InputError(
                f"The chat template cannot render prompt {number}, with messages of "
                f"{', '.join(one['role'] for one in messages)}: {' '.join(str(error).split())[:400]}"
            ) from error
        require_unicode(text, f"Prompt {number}")
        return text


def _is_one(prompts: Any) -> bool:
    """Whether something is one prompt: a text, messages, numbers, or nothing that could be many."""
    if isinstance(prompts, str) or not many(prompts, "The prompts"):
        return True
    if getattr(prompts, "ndim", 0) == 1 and not isinstance(prompts, list):
        return True  # an array of numbers; one of two axes has a prompt a row
    first = next(iter(prompts), None) if isinstance(prompts, (list, tuple)) else None
    return isinstance(first, (Mapping, int, np.integer)) and not isinstance(first, bool)


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)
