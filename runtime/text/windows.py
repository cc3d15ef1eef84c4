"""A long text in overlapping windows, each of them a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.errors import InputError
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded


@dataclass(frozen=True, eq=False)
class Window:
    """Some of a text's tokens, with all that stands around them: the tokenizer's own, the other text of a pair.

    Attributes:
        encoded: the request.
        first: how many tokens of the text come before it.
        count: how many it holds.
    """

    encoded: Encoded
    first: int
    count: int

    @property
    def stop(self) -> int:
        """The place in the text past its last token."""
        return self.first + self.count


def flat(cuts: Sequence[Sequence[Window]]) -> tuple[list[Encoded], list[int]]:
    """The requests of several texts' windows, one after another, and which text each is of."""
    return (
        [window.encoded for windows in cuts for window in windows],
        [place for place, windows in enumerate(cuts) for _ in windows],
    )


def cut(whole: Encoded, bound: Bound, stride: int, side: int, backwards: bool) -> list[Window]:
    """The windows of a text in its order: one, where it is within the bound.

    They are those of the tokenizers' own truncation: each full but the last that is cut.

    Args:
        whole: with spans.
        stride: how many of its tokens each shares with the next.
        side: which text of a pair is cut.
        backwards: whether they are cut from the text's end, as a tokenizer does that truncates on the left.

    Raises:
        InputError: a window has room for no token that the one before it has not.
    """
    assert whole.spans is not None, "encoded with offsets"
    places = np.flatnonzero(whole.spans.sides == side)
    if bound.length is None or whole.length <= bound.length or not len(places):
        return [Window(whole, 0, len(places))]
    own = whole.length - len(places)
    room = bound.length - own
    if room < 1:
        raise InputError(
            f"A window of {bound.length} tokens ({bound.why}) has room for none of the text beside the {own} tokens "
            "that stand in every window. Shorten the other text of the pair, or raise that limit."
        )
    if room <= stride:
        raise InputError(
            f"Neighbouring windows are to share {stride} tokens (stride, doc_stride), but one of {bound.length} tokens "
            f"({bound.why}) has room for {room} of the text. A number below that is accepted."
        )
    before, after = range(places[0]), range(places[-1] + 1, whole.length)
    return [
        Window(whole.only([*before, *places[first:stop].tolist(), *after]), first, stop - first)
        for first, stop in _ranges(len(places), room, room - stride, backwards)
    ]


def _ranges(count: int, room: int, step: int, backwards: bool) -> Iterator[tuple[int, int]]:
    starts = range(0, max(1, count - room + step), step)
    forward = [(start, min(start + room, count)) for start in starts]
    return iter([(count - stop, count - start) for start, stop in reversed(forward)] if backwards else forward)
