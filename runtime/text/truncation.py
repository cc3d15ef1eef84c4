"""How much of a long text a tokenizer has to read.

A tokenizer reads a whole text and truncates it afterwards. So a long text is clipped first, to a part that surely has
more tokens than will be kept, at a place where those that are kept come out the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.errors import InputError
from headrace.runtime.text.validate import require_choice

# The word next to a cut, with the white space on both its sides: what the cut changes stays within that word. Only a
# space or a line end will do: other white space is a letter, or nothing at all, to some tokenizers.
GUARD = re.compile(r"[ \n](\S++)(?=[ \n])")
# No tokenizer makes more tokens of a character than it has bytes in UTF-8.
BYTES = 4
# Tokens beyond those of the guard, for what a tokenizer adds itself.
SLACK = 16
# Characters a token at first: more than most texts have, so that one look is mostly enough.
CHARACTERS = 8
# Characters a token in most texts.
USUAL = 4


class Strategy(StrEnum):
    """Which text of a pair gives its tokens, by transformers' names."""

    LONGEST_FIRST = "longest_first"
    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"


def read_truncate(truncate: Any, pairs: bool) -> Strategy | None:
    """How texts are truncated; None where they are not.

    Raises:
        InputError: neither yes, no nor a strategy, or one that truncates the second text of what has one.
    """
    if isinstance(truncate, str) and truncate in list(Strategy):
        if truncate == Strategy.ONLY_SECOND and not pairs:
            raise InputError(f"truncate is {truncate!r}, which is for pairs of texts; these are texts. Pass True.")
        return Strategy(truncate)
    if isinstance(truncate, str):
        raise InputError(
            f"truncate is {truncate!r}; True, False, None and, of pairs, {', '.join(Strategy)} are accepted."
        )
    require_choice("truncate", truncate)
    return Strategy.LONGEST_FIRST if truncate else None


@dataclass(frozen=True)
class Piece:
    """What the tokenizer reads of a text or a pair.

    Attributes:
        parts: a text, or the two of a pair, one of them perhaps cut.
        start: the characters cut off before it.
        spare: the tokens it must have beyond those that are kept, None where nothing is cut.
    """

    parts: tuple[str, ...]
    start: int = 0
    spare: int | None = None


def first_size(tokens: int) -> int:
    """The characters to try first where that many tokens are to be kept."""
    return CHARACTERS * (tokens + 2 * SLACK)


def about(text: Any, most: int | None) -> int:
    """About how many tokens a text or a pair has, `most` characters of each text counted; 1 of what is neither."""
    if isinstance(text, str):
        return 1 + (len(text) if most is None or len(text) < most else most) // USUAL
    if not isinstance(text, (tuple, list)):
        return 1
    return sum(about(part, most) if isinstance(part, str) else 1 for part in text)


def grown(size: int, tokens: int, needed: int) -> int:
    """The characters to try next, where the last try had too few tokens.

    At least twice as many, so that all tries together stay in proportion to the last; at most eight times, since a
    text that begins with few tokens may go on with many.
    """
    return int(size * min(8.0, max(2.0, 1.25 * needed / max(1, tokens))))


def giving(parts: tuple[str, ...], strategy: Strategy) -> int:
    """The text of a pair that is clipped: only its tokens can be many more than are kept."""
    if strategy is Strategy.LONGEST_FIRST or len(parts) == 1:
        return max(range(len(parts)), key=lambda part: len(parts[part]))
    return 0 if strategy is Strategy.ONLY_FIRST else 1


def clip(parts: tuple[str, ...], size: int, side: str, strategy: Strategy = Strategy.LONGEST_FIRST) -> Piece:
    """At least `size` characters of a text, or of the text of a pair that gives; whole where no cut is safe.

    Args:
        parts: a text, or the two of a pair.
        size: counted from the end that truncation keeps.
        side: where truncation takes tokens away, "right" or "left".
    """
    clipped = giving(parts, strategy)
    text = parts[clipped]
    if len(text) <= size:
        return Piece(parts)
    # The guard reads the same backwards.
    found = GUARD.search(text[::-1] if side == "left" else text, size)
    if found is None:
        return Piece(parts)
    start, end = (len(text) - found.end(), len(text)) if side == "left" else (0, found.end())
    kept = tuple(text[start:end] if part == clipped else other for part, other in enumerate(parts))
    return Piece(kept, start, BYTES * len(found[1]) + SLACK)


def kept(
    sides: list[int | None], longest: int, side: str, strategy: Strategy = Strategy.LONGEST_FIRST
) -> list[int]:  # fmt: skip
    """The places of the tokens that truncation leaves, by transformers' rules; more than `longest` where none gives.

    A fast tokenizer's own truncation gives the same. But it also builds what it cuts off, for a pair every combination
    of the two texts' parts: two texts of 100,000 tokens take more memory than there is.

    Args:
        sides: for each token the text it belongs to, 0 or 1; None for the tokenizer's own, which all stay.
        longest: how many tokens may stay.
        side: where they are taken away, "right" or "left".
        strategy: which text of a pair gives its tokens first.
    """
    own = [[place for place, part in enumerate(sides) if part == text] for text in (0, 1)]
    room = max(0, longest - sides.count(None))
    if strategy is Strategy.LONGEST_FIRST:
        less, more = (1, 0) if len(own[0]) > len(own[1]) else (0, 1)
        counts = {less: min(len(own[less]), room // 2)}
    else:
        less, more = (1, 0) if strategy is Strategy.ONLY_FIRST else (0, 1)
        counts = {less: len(own[less])}
    counts[more] = min(len(own[more]), max(0, room - counts[less]))
    left = {place for place, part in enumerate(sides) if part is None}
    for text, places in enumerate(own):
        left.update(places[len(places) - counts[text] :] if side == "left" else places[: counts[text]])
    return sorted(left)
