"""Plan how requests run: which go together, and how wide. A plan runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import feed
from headrace.ir import PaddingRule, Program
from headrace.runtime.text.encoded import Encoded

# One array a request, or all of them in one.
Rows = Sequence[NDArray[Any]] | NDArray[Any]
# Padded lengths: fine steps where padding would cost most of a row, coarse ones where there are few sequences.
FINE, COARSE, FROM = 8, 64, 256


@dataclass(frozen=True)
class Step:
    """One run.

    Attributes:
        requests: by their place in the caller's list.
        length: padded.
        open: whether requests that come later could be put in it, in place of padding or a step of their own.
    """

    requests: tuple[int, ...]
    length: int
    open: bool = False


def bucket(length: int, longest: int | None) -> int:
    """The padded length of a sequence: a multiple of 8 up to 256 and of 64 above, and never past the model's limit."""
    step = FINE if length <= FROM else COARSE
    rounded = -(-length // step) * step
    return rounded if longest is None else max(length, min(rounded, longest))


def plan(
    lengths: Sequence[int],
    program: Program,
    *,
    step_tokens: int,
    batch_size: int | None = None,
    token_budget: int | None = None,
) -> list[Step]:
    """Group requests of like length, longest first, so that the least is padded and memory peaks at once.

    Args:
        lengths: tokens of each request.
        step_tokens: padded tokens in a step that suit the target; one longer request still makes a step of its own.
        batch_size: requests in a step at most.
        token_budget: padded tokens in a step at most, in place of `step_tokens`; no single request passes it, which
            the caller has checked.
    """
    budget = token_budget or step_tokens
    exact = program.decision.padding is PaddingRule.EXACT
    longest = program.facts.limits.length

    def width(request: int) -> int:
        fits = min(longest or budget, budget) if token_budget else longest
        return bucket(lengths[request], fits) if exact else lengths[request]

    order = sorted(range(len(lengths)), key=lambda request: (-width(request), request))
    runs = [list(order)] if exact else [list(group) for _, group in groupby(order, width)]
    return [step for run in runs for step in _filled(run, width, batch_size, budget)]


def _filled(run: list[int], width: Callable[[int], int], batch_size: int | None, budget: int) -> Iterator[Step]:
    """Cut a run of requests, widest first, into steps: the first request of a step sets its width."""
    while run:
        widest = width(run[0])
        size = min(max(1, budget // widest), batch_size or len(run))
        yield Step(tuple(run[:size]), widest)
        run = run[size:]


def assemble(step: Step, requests: Sequence[Encoded], program: Program) -> dict[str, NDArray[np.int64]]:
    """The step's inputs, padded on the right: int64 [requests, length] by name."""
    held = [requests[request] for request in step.requests]
    ids, types, unseen = zip(*((one.ids, one.types, one.unseen) for one in held), strict=True)
    offset = program.facts.positions.offset
    return program.signature.named(feed.padded(ids, types, offset=offset, width=step.length, unseen=unseen))


def rows(step: Step, lengths: Sequence[int], output: NDArray[Any], per_token: bool) -> Rows:
    """The answer to each request of the step, in its order: of [requests, length, width] or [requests, width]."""
    if not per_token:
        return output[: len(step.requests)]
    return [output[row, : lengths[request]] for row, request in enumerate(step.requests)]
