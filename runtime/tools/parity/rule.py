"""When a result counts as the same: no farther from float64 than the precision's own eager run, within a factor.

    rmse(result, float64) <= m * floor + rel * rms / 10

`floor` is the rmse of the eager run in that precision against float64, on the same rows; `rms` is the size of the
float64 values; `rel` is the precision's unit of rounding, which carries nodes whose eager run happens to be exact. The
factors m were chosen on honest runs of several targets and on seeded defects (docs/parity.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Slack:
    """What one precision is allowed: times the floor, and the relative size of one rounding."""

    times: float
    rounding: float


SLACK = {"float32": Slack(10, 2e-6), "float16": Slack(3, 1e-3), "bfloat16": Slack(3, 8e-3)}


@dataclass(frozen=True)
class Noise:
    """How far the eager run lies from float64 at a node, and how large the float64 values are."""

    floor: float
    rms: float


def noise(exact: Array, eager: Array) -> Noise:
    """Of all values of a node."""
    return Noise(rmse(eager, exact), float(np.sqrt(np.mean(np.square(exact, dtype=np.float64)))))


def limit(dtype: str, at: Noise) -> float:
    """The largest rmse that passes."""
    slack = SLACK[dtype]
    return slack.times * at.floor + slack.rounding * at.rms / 10


def rmse(one: Array, other: Array) -> float:
    """The root of the mean square of the differences; NaN where one holds a NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other.astype(np.float64)))))


def by_request(results: Sequence[Array], exacts: Sequence[Array], most: float) -> tuple[float | None, ...]:
    """The rmse of each request alone in multiples of the limit; None where it is no number."""
    found = [rmse(one, other) / most if most else 0.0 for one, other in zip(results, exacts, strict=True)]
    return tuple(share if np.isfinite(share) else None for share in found)


def stacked(rows: Sequence[Array]) -> Array:
    """The rows of all requests below one another; a pooled answer is one row."""
    return np.concatenate([np.atleast_2d(one) for one in rows])
