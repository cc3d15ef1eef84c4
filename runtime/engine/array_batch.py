"""Plan and assemble steps of arrays: those of one size go together, and nothing is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.ir import Program
from headrace.runtime.arrays import Given, free_axis
from headrace.runtime.engine import padded_batch
from headrace.runtime.engine.padded_batch import Rows, Step


def plan(
    lengths: ArrayLike,
    program: Program,
    *,
    step_tokens: int,
    batch_size: int | None = None,
    token_budget: int | None = None,
) -> Iterator[Step]:
    """Group requests of one length. Budgets count hidden rows; a length may count samples, many of which make a row."""
    free = free_axis(program.signature.arrays[0])
    row = free.stride if free else 1
    budget = token_budget * row if token_budget else None
    return padded_batch.plan(
        lengths, program, step_tokens=step_tokens * row, batch_size=batch_size, token_budget=budget
    )


def assemble(requests: Sequence[Given], length: int, program: Program) -> dict[str, NDArray[Any]]:
    """The step's input by name: float32 [requests, ...]."""
    return {program.signature.arrays[0].name: np.stack([request.values for request in requests])}


def rows(step: Step, lengths: NDArray[np.int64], output: NDArray[Any], per_token: bool) -> Rows:
    """The answer to each request of the step, in its order, whole: every row is one of the array's."""
    return output[: len(step.requests)]
