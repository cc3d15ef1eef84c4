"""Where the tokens of a text stand in it: what token-level answers need beside the ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx.names import IDS


@dataclass(frozen=True, eq=False)
class Spans:
    """Where the tokens of one text stand in it.

    Attributes:
        tokens: each token as the vocabulary spells it.
        offsets: the first character and the one past the last; (0, 0) for a token that the tokenizer added.
        special: bool [t], the tokens that the tokenizer added.
        unknown: bool [t], words that the vocabulary does not have.
        marked: whether the spelling says that a token continues a word, as WordPiece's ## does.
        join: spells tokens as text.
        sides: int64 [t], the text of a pair that each belongs to, 0 or 1; -1 for a token that the tokenizer added.
        words: int64 [t], the word that each token is of: of those given, else of what the tokenizer takes for words;
            -1 for one that is of none.
        split: whether the text came in words.
    """

    tokens: list[str]
    offsets: list[tuple[int, int]]
    special: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    marked: bool
    join: Callable[[list[str]], str]
    sides: NDArray[np.int64]
    words: NDArray[np.int64]
    split: bool = False

    def only(self, places: list[int]) -> Spans:
        """The spans of those tokens alone."""
        tokens, offsets = [self.tokens[place] for place in places], [self.offsets[place] for place in places]
        arrays = {name: getattr(self, name)[places] for name in ("special", "unknown", "sides", "words")}
        return replace(self, tokens=tokens, offsets=offsets, **arrays)


def read_spans(
    tokenizer: Any, found: Any, row: int, start: int, join: Callable[[list[str]], str], given: tuple[str, ...] = ()
) -> Spans:
    """The spans of one row of a tokenizer's answer.

    Args:
        tokenizer: a fast one; the others do not know.
        found: what it answered, with offsets and the mask of special tokens.
        start: how many characters of the text were cut off before the tokenizer read it.
        join: spells tokens as text.
        given: the words of a text that came in words, each of which the tokenizer counts characters from anew; offsets
            are those in the words with a space between each two.
    """
    ids = found[IDS][row]
    special = np.asarray(found["special_tokens_mask"][row], np.bool_)
    words = np.asarray([-1 if word is None else word for word in found.word_ids(row)], np.int64)
    before = [0, *accumulate(len(word) + 1 for word in given)]
    starts = np.asarray([before[word] for word in words]) if given else np.full(len(ids), start)
    offsets = [
        (0, 0) if added else (a + int(first), b + int(first))
        for added, first, (a, b) in zip(special, starts, found["offset_mapping"][row], strict=True)
    ]
    return Spans(
        tokens=tokenizer.convert_ids_to_tokens(ids),
        offsets=offsets,
        special=special,
        unknown=np.asarray([token == tokenizer.unk_token_id for token in ids], np.bool_),
        marked=bool(getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)),
        join=join,
        sides=np.asarray([-1 if side is None else side for side in found.sequence_ids(row)], np.int64),
        words=words,
        split=bool(given),
    )
