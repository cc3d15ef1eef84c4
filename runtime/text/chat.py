"""Texts as a tokenizer's chat template renders them, to the character as sentence-transformers does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import ChatRules

Ids = NDArray[np.int64]
PAIR = ("query", "document")
# Pairs that differ in one text each from the first: a template that leaves a text out renders two of them alike.
PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
# Texts without a token in common: what the rendered two end in alike is the template's.
FILLERS = ("0", "1 2 3 4")


class Chat:
    """A tokenizer's template under the folder's rules."""

    def __init__(self, tokenizer: Any, rules: ChatRules) -> None:
        """Render nothing yet.

        Raises:
            InputError: the tokenizer has no template.
        """
        if tokenizer is not None and not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "The model's texts go through a chat template, and the tokenizer has none. Pass the tokenizer that "
                "belongs to the model."
            )
        self._tokenizer, self._structured = tokenizer, rules.structured
        self.restores = rules.restores
        self._options: dict[str, Any] = json.loads(rules.options)
        self._pairs = False

    def render(self, parts: Sequence[str], prompt: str) -> str:
        """A text, or the two of a pair, with the prompt as the system's message.

        Raises:
            InputError: the template fails, or leaves one of a pair out.
        """
        if len(parts) == len(PAIR) and not self._pairs:
            self._require_pairs()
        return self._rendered(parts, prompt)

    def filled(self, parts: int, prompt: str) -> list[str]:
        """One text or two rendered twice, with the fillers in their places."""
        return [self._rendered([filler] * parts, prompt) for filler in FILLERS]

    def _rendered(self, parts: Sequence[str], prompt: str) -> str:
        said = [("system", prompt)] if prompt else []
        said += zip(PAIR if len(parts) > 1 else ("user",), parts, strict=True)
        messages = [{"role": role, "content": self._content(text)} for role, text in said]
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **self._options)
        except Exception as error:  # of jinja, or raised by the template itself
            raise InputError(
                f"The chat template cannot render messages of {', '.join(role for role, _ in said)}: "
                f"{' '.join(str(error).split())}"
            ) from error
        return text

    def _content(self, text: str) -> str | list[dict[str, str]]:
        return [{"type": "text", "text": text}] if self._structured else text

    def _require_pairs(self) -> None:
        first, *others = [self._rendered(pair, "") for pair in PROBES]
        if lost := [role for role, other in zip(PAIR, others, strict=True) if other == first]:
            raise InputError(
                f"The chat template leaves the {' and the '.join(lost)} of a pair out: it must render messages of the "
                "roles query and document. Pass a tokenizer whose chat_template does."
            )
        self._pairs = True


def common_end(first: Ids, second: Ids) -> Ids:
    """The tokens that two renderings end in alike: the template's own. None, where they do not differ at all."""
    shorter = min(len(first), len(second))
    alike = next((i for i in range(shorter) if first[-1 - i] != second[-1 - i]), shorter)
    return first[len(first) - alike :] if alike < shorter else first[:0]
