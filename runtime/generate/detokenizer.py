"""Token ids to text as they come, such that what was said once stays: the pieces make up what all ids decode to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

from headrace.runtime.text.tokenizer.equivalence import PROBES
from headrace.runtime.text.tokenizer.tokenizers_only import TIDIED

# What stands for bytes that are no whole character, yet.
BROKEN = "\ufffd"
# A token that is a byte, of vocabularies that spell what they lack so: a run of them is read when it has ended.
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# What transformers takes a space out of, where a tokenizer asks for that: it is done once all of it is there. A single
# apostrophe may have lost the space after it, which comes back where what follows is one of the others.
UNTIDY = tuple(sorted({text[:end] for text in TIDIED for end in range(1, len(text))} | {"'"}))
# So many tokens are decoded again with new ones before the oldest of them are left out: what a token reads as may hang
# on those before it, as the first one's space does.
CONTEXT = 8


class Vocabulary:
    """A tokenizer as it decodes; one for all texts, from any thread."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True) -> None:
        """Ask nothing yet.

        Args:
            tokenizer: of transformers, or a `PlainTokenizer`.
        """
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self.tidies = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._bytes: dict[int, bool | None] = {}

    def decode(self, ids: list[int]) -> str:
        """Token ids as text."""
        return str(self._decode(ids))

    @cached_property
    def _decode(self) -> Callable[[list[int]], str]:
        """The tokenizers library itself where it decodes alike: what lies around it takes longer than a few tokens."""
        decode = partial(self._tokenizer.decode, skip_special_tokens=self._skip)
        library = getattr(self._tokenizer, "backend_tokenizer", None)
        if library is None or self.tidies:
            return decode
        direct = partial(library.decode, skip_special_tokens=self._skip)
        probed = (library.encode(text).ids for text in PROBES)
        return direct if all(direct(ids) == decode(ids) for ids in probed) else decode

    def ends_in_byte(self, ids: list[int]) -> bool:
        """Whether the last token that reads as anything is spelled as a byte."""
        return bool(next((one for one in map(self._is_byte, reversed(ids)) if one is not None), False))

    def _is_byte(self, token: int) -> bool | None:
        """None for one that reads as nothing, as a special token that is left out."""
        if token not in self._bytes:
            spelled = str(self._tokenizer.convert_ids_to_tokens([token])[0])
            # One that is a space may read as nothing alone, where the first space of a text is taken away.
            self._bytes[token] = True if BYTE.fullmatch(spelled) else False if self.decode([token]) else None
        return self._bytes[token]


class Detokenizer:
    """One text.

    Attributes:
        text: what no token that may come can change.
        tail: what the last tokens read as so far; `text + tail` is what all tokens decode to.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Begin with no token."""
        self._vocabulary = vocabulary
        self.text = self.tail = ""
        # The tokens that are decoded again, and how much of what they read as is in `text`.
        self._ids: list[int] = []
        self._said = 0

    def push(self, ids: Iterable[int]) -> None:
        """Some more tokens."""
        self._ids.extend(ids)
        if not self._ids:
            return
        now = self._vocabulary.decode(self._ids)
        sure = max(self._said, self._sure(now))
        self.text += now[self._said : sure]
        self.tail = now[sure:]
        self._said = sure
        if not self.tail and len(self._ids) >= 2 * CONTEXT:
            self._forget()

    def _sure(self, now: str) -> int:
        """How many characters stay whatever comes."""
        if self._vocabulary.ends_in_byte(self._ids):
            return self._said
        end = len(now) - now.endswith(BROKEN)
        if self._vocabulary.tidies:
            end -= max((len(start) for start in UNTIDY if now.endswith(start, 0, end)), default=0)
        return end

    def _forget(self) -> None:
        """Leave the oldest tokens out, if those that are kept read as something: what follows is told from that."""
        kept = self._ids[-CONTEXT:]
        said = self._vocabulary.decode(kept)
        if said and self.text.endswith(said.lstrip()):
            self._ids, self._said = kept, len(said)
