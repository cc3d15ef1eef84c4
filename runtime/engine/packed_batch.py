"""Plan and assemble packed steps: sequences after one another in one row, with no padding between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.ir import Program
from headrace.runtime.engine.padded_batch import Rows, Step
from headrace.runtime.text.encoded import Encoded

# Rows of few tokens take a power of two, so that each is captured once; longer ones are filled by a hundredth at most.
LEAST, CAPTURED, COARSE = 16, 2048, 128
# A row that lacks less than this part of the budget has the budget's length, so that full rows have one length.
FULL = 16


def row_of(tokens: int, budget: int) -> int:
    """The row that holds so many tokens: the whole budget where little of it would be left."""
    if budget - budget // FULL <= tokens <= budget:
        return budget
    if tokens > CAPTURED:
        return -(-tokens // COARSE) * COARSE
    return max(LEAST, 1 << (tokens - 1).bit_length())


def plan(
    lengths: Sequence[int],
    program: Program,
    *,
    step_tokens: int,
    batch_size: int | None = None,
    token_budget: int | None = None,
) -> Iterator[Step]:
    """Fill rows with requests, longest first: tiles of like work, and memory that peaks at once.

    A row is planned when it is drawn: the target begins with the first while the others are planned.

    Args:
        lengths: tokens of each request.
        step_tokens: tokens in a row that suit the target; one longer request still makes a row of its own.
        batch_size: requests in a row at most.
        token_budget: tokens in a row at most, filling included, in place of `step_tokens`.
    """
    budget = token_budget or step_tokens
    given = np.array(lengths, np.int64)
    # The longest last, so that taking it moves nothing; of equals, the caller's first.
    sorted_ = np.lexsort((-np.arange(len(given)), given))
    order, left = sorted_.tolist(), given[sorted_].tolist()
    while order:
        held, tokens = _filled(order, left, budget, batch_size or len(lengths))
        row = row_of(tokens, budget)
        length = max(tokens, min(row, token_budget)) if token_budget else row
        yield Step(tuple(held), length, open=not order and length < budget)


def _filled(order: list[int], left: list[int], budget: int, most: int) -> tuple[list[int], int]:
    """Take the longest request, then again and again the longest that still fits."""
    held, tokens = [order.pop()], left.pop()
    while len(held) < most and (place := bisect_right(left, budget - tokens)):
        held.append(order.pop(place - 1))
        tokens += left.pop(place - 1)
    return held, tokens


def assemble(step: Step, requests: Sequence[Encoded], program: Program) -> dict[str, NDArray[Any]]:
    """The step's inputs by name: int64 [1, tokens], and where each sequence begins, int32 [sequences + 1]."""
    held = [requests[request] for request in step.requests]
    ids, types = [one.ids for one in held], [one.types for one in held]
    return program.signature.named(feed.packed(program, ids, types, width=step.length))


def rows(step: Step, lengths: Sequence[int], output: NDArray[Any], per_token: bool) -> Rows:
    """The answer to each request of the step, in its order: of [1, tokens, width] or [sequences, width]."""
    if not per_token:
        return output[: len(step.requests)]
    ends = accumulate(lengths[request] for request in step.requests)
    return [output[0, end - lengths[request] : end] for request, end in zip(step.requests, ends, strict=True)]
