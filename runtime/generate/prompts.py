"""What is to be continued, in whichever form it comes, as token ids."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Program
from headrace.runtime.text.prefetch import PACKED
from headrace.runtime.text.prompts import require_unicode
from headrace.runtime.text.reader import Reader
from headrace.runtime.text.tokenizer import Texts
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
        self._rendered = Reader(tokenizer, typed=False, rendered=True)

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
        found: dict[int, Ids] = {}
        texts = [number for number, one in enumerate(listed) if isinstance(one, str)]
        chats = [number for number, one in enumerate(listed) if _is_chat(one)]
        rows = [number for number in range(len(listed)) if number not in {*texts, *chats}]
        for number in rows:
            if not many(listed[number], f"Prompt {number}") or isinstance(listed[number], bytes):
                raise InputError(f"Prompt {number} is {reprlib.repr(listed[number])}; {ACCEPTED} is accepted.")
        found |= zip(texts, self._of_texts([listed[number] for number in texts]), strict=True)
        said = [self._render(listed[number], number, template) for number in chats]
        found |= zip(chats, self._of_ids([self._rendered_ids(text) for text in said]), strict=True)
        found |= zip(rows, self._of_ids([listed[number] for number in rows]), strict=True)
        return [found[number] for number in range(len(listed))]

    def _of_texts(self, texts: list[str]) -> list[Ids]:
        return [one.ids for one in self._texts.encode(texts, truncate=False, prompt="")]

    def _of_ids(self, rows: list[Any]) -> list[Ids]:
        if not rows:
            return []
        _, parts = self._texts.raw(rows, None, PACKED)
        return [one.ids for part in parts for one in part]

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
