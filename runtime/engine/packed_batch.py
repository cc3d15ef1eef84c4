"""Plan and assemble packed steps: sequences after one another in one row, with no padding between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace import feed
from headrace.ir import Program
from headrace.runtime.engine.padded_batch import Rows, Step
from headrace.runtime.text.encoded import Tokens

# Rows of few tokens take a power of two, so that each is captured once; longer ones are filled by a hundredth at most.
LEAST, CAPTURED, COARSE = 16, 2048, 128
# A row that lacks less than this part of the budget has the budget's length, so that full rows have one length.
FULL = 16
# Of a program that is exported with any number of tokens.
FEWEST = 2


def row_of(tokens: int, budget: int) -> int:
    """The row that holds so many tokens: the whole budget where little of it would be left."""
    if budget - budget // FULL <= tokens <= budget:
        return budget
    if tokens > CAPTURED:
        return -(-tokens // COARSE) * COARSE
    return max(LEAST, 1 << (tokens - 1).bit_length())


def plan(
    lengths: ArrayLike,
    program: Program,
    *,
    step_tokens: int,
    batch_size: int | None = None,
    token_budget: int | None = None,
    fills: bool = True,
) -> Iterator[Step]:
    """Fill rows with requests, longest first: tiles of like work, and memory that peaks at once.

    A row is planned when it is drawn: the target begins with the first while the others are planned.

    Args:
        lengths: tokens of each request.
        step_tokens: tokens in a row that suit the target; one longer request still makes a row of its own.
        batch_size: requests in a row at most.
        token_budget: tokens in a row at most, filling included, in place of `step_tokens`.
        fills: whether rows are filled to one of few lengths; else by a token where there is one alone.
    """
    budget, given = token_budget or step_tokens, np.asarray(lengths, np.int64)
    left = _Left(given) if len(given) != 1 else _One(int(given[0]))
    while left:
        requests, tokens = left.filled(budget, batch_size)
        row = row_of(tokens, budget) if fills else max(tokens, FEWEST)
        length = max(tokens, min(row, token_budget)) if token_budget else row
        yield Step(requests, length, open=not left and length < budget)


class _One:
    """`_Left` of one request, which answers sooner where nothing looks for others."""

    def __init__(self, length: int) -> None:
        self._length, self._left = length, True

    def __bool__(self) -> bool:
        return self._left

    def filled(self, budget: int, most: int | None) -> tuple[NDArray[np.int64], int]:
        """Take it; and its tokens."""
        self._left = False
        return np.zeros(1, np.int64), self._length


class _Left:
    """Requests that are in no row yet, those of one length together: a row takes some of each, not one at a time."""

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        # Of one length, the caller's first is taken first.
        self._order = np.argsort(lengths, kind="stable")
        found = np.unique(lengths[self._order], return_index=True, return_counts=True)
        self._sizes, self._begins, self._counts = (numbers.tolist() for numbers in found)

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def filled(self, budget: int, most: int | None) -> tuple[NDArray[np.int64], int]:
        """Take the longest request, then again and again the longest that still fits; and their tokens."""
        held = [self._taken(len(self._sizes) - 1, budget, most)]
        count, tokens = len(held[0][0]), held[0][1]
        while (most is None or count < most) and (place := bisect_right(self._sizes, budget - tokens)):
            held.append(self._taken(place - 1, budget - tokens, None if most is None else most - count))
            count, tokens = count + len(held[-1][0]), tokens + held[-1][1]
        return np.concatenate([requests for requests, _ in held]), tokens

    def _taken(self, place: int, room: int, most: int | None) -> tuple[NDArray[np.int64], int]:
        """So many of one length as there is room for, and at least one; and their tokens."""
        size, begin, count = self._sizes[place], self._begins[place], self._counts[place]
        taken = min(count, max(1, room // size), most or count)
        self._begins[place], self._counts[place] = begin + taken, count - taken
        if taken == count:
            del self._sizes[place], self._begins[place], self._counts[place]
        return self._order[begin : begin + taken], taken * size


def assemble(requests: Tokens, length: int, program: Program) -> dict[str, NDArray[Any]]:
    """The inputs by name of a step of so long a row: int64 [1, length], and where each sequence begins, int32."""
    return program.signature.named(feed.pack(program, requests.ids, requests.lengths, requests.types, width=length))


def rows(step: Step, lengths: NDArray[np.int64], output: NDArray[Any], per_token: bool) -> Rows:
    """The answer to each request of the step, in its order: of [1, tokens, width] or [sequences, width]."""
    if not per_token:
        return output[: len(step.requests)]
    ends = lengths[step.requests].cumsum()
    return np.split(output[0, : ends[-1]], ends[:-1])
