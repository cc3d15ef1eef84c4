"""The likeliest spans of a context, by how well each token begins and ends the answer to a question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.tasks.answers.activation import Floats
from headrace.runtime.text.spans import Spans


class Likely(NamedTuple):
    """A span of tokens, the last included, and its probability."""

    first: int
    last: int
    score: float


def likelihoods(logits: Floats, counted: NDArray[np.bool_]) -> Floats:
    """How probable it is that the answer begins, and ends, with each token, [t, 2]; 0 where it is not counted."""
    values = np.where(counted[:, None], np.asarray(logits, np.float32), np.float32(-np.inf))
    raised: Floats = np.exp(values - values.max(axis=0))
    return np.asarray(raised / raised.sum(axis=0), np.float32)


def likeliest(scores: Floats, context: NDArray[np.bool_], most: int) -> Iterator[Likely]:
    """The spans of the context of at most so many tokens, the likeliest first; of like ones, the first.

    Args:
        scores: as `likelihoods` gives them.
        context: bool [t], the tokens of the context, which are neighbours.
    """
    places = np.flatnonzero(context)
    if not len(places):
        return
    begins, ends = scores[places, 0], np.pad(scores[places, 1], (0, most - 1), constant_values=-1)
    products = begins[:, None] * np.lib.stride_tricks.sliding_window_view(ends, most)
    # A span that would end past the context has a product below 0, or none where it cannot begin.
    inside = np.arange(len(places))[:, None] + np.arange(most) < len(places)
    flat = np.where(inside, products, -1).ravel()
    for best in np.argsort(-flat, kind="stable"):
        if flat[best] < 0:
            return
        first, more = divmod(int(best), most)
        yield Likely(int(places[first]), int(places[first]) + more, float(flat[best]))


def characters(spans: Spans, span: Likely, words: bool) -> tuple[int, int]:
    """The first character of a span and the one past its last.

    Args:
        spans: of the window's tokens.
        words: whether a span that begins or ends within a word takes the whole word.
    """
    ends = [_of_word(spans, token) if words else spans.offsets[token] for token in (span.first, span.last)]
    return ends[0][0], ends[1][1]


def _of_word(spans: Spans, token: int) -> tuple[int, int]:
    """Where the word of a token begins and ends, or the token itself where it is of none."""
    if spans.words[token] < 0:
        return spans.offsets[token]
    same = np.flatnonzero((spans.words == spans.words[token]) & (spans.sides == spans.sides[token]))
    return spans.offsets[int(same[0])][0], spans.offsets[int(same[-1])][1]
