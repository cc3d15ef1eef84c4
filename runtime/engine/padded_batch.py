"""Plan how requests run: which go together, and how wide. A plan runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace import feed
from headrace.ir import PaddingRule, Program
from headrace.runtime.text.encoded import Tokens

# One array a request, or all of them in one.
Rows = Sequence[NDArray[Any]] | NDArray[Any]
# Padded lengths: fine steps where padding would cost most of a row, coarse ones where there are few sequences.
FINE, COARSE, FROM = 8, 64, 256
# A step is padded by at most its tokens over this: a further step costs about as much as so many tokens.
PADDED = 32


@dataclass(frozen=True, eq=False)
class Step:
    """One run.

    Attributes:
        requests: by their place in the caller's list, int64.
        length: padded.
        open: whether requests that come later could be put in it, in place of padding or a step of their own.
    """

    requests: NDArray[np.int64]
    length: int
    open: bool = False


def bucket(length: ArrayLike, longest: int | None) -> NDArray[np.int64]:
    """The padded length of each sequence: a multiple of 8 up to 256 and of 64 above, never past the model's limit."""
    given = np.asarray(length, np.int64)
    step = np.where(given <= FROM, FINE, COARSE)
    rounded = -(-given // step) * step
    return rounded if longest is None else np.maximum(given, np.minimum(rounded, longest))


def plan(
    lengths: ArrayLike,
    program: Program,
    *,
    step_tokens: int,
    batch_size: int | None = None,
    token_budget: int | None = None,
) -> Iterator[Step]:
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
    fits = min(longest or budget, budget) if token_budget else longest
    widths = bucket(lengths, fits) if exact else np.asarray(lengths, np.int64)
    # The widest first; of one width, the caller's first.
    order = np.argsort(-widths, kind="stable")
    widths = widths[order]
    begin, most = 0, step_tokens // PADDED if exact else 0
    while begin < len(order):
        widest = int(widths[begin])
        size = min(max(1, budget // widest), batch_size or len(order))
        padding = (widest - widths[begin : begin + size]).cumsum()
        end = begin + int(np.searchsorted(padding, most, "right"))
        yield Step(order[begin:end], widest)
        begin = end


def assemble(requests: Tokens, length: int, program: Program) -> dict[str, NDArray[np.int64]]:
    """The inputs by name of a step so wide, padded on the right: int64 [requests, length]."""
    offset, unseen = program.facts.positions.offset, requests.unseen
    made = feed.pad(requests.ids, requests.lengths, requests.types, offset=offset, width=length, unseen=unseen)
    return program.signature.named(made)


def rows(step: Step, lengths: NDArray[np.int64], output: NDArray[Any], per_token: bool) -> Rows:
    """The answer to each request of the step, in its order: of [requests, length, width] or [requests, width]."""
    if not per_token:
        return output[: len(step.requests)]
    return [output[row, :length] for row, length in enumerate(lengths[step.requests].tolist())]
