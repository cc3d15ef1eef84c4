"""How it is measured, and the row of a table that comes out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

PASSES, LATENCIES = 5, 200
# Tokens of the requests that are timed one by one.
ONE = (16, 128, 512)


@dataclass
class Row:
    """What was measured of one contender; None where it was not."""

    name: str
    rate: float | None
    text_rate: float | None = None
    first: float | None = None
    warm: float | None = None
    latencies: list[tuple[float, float]] = field(default_factory=list)


def median_seconds(run: Callable[[], Any], passes: int = PASSES) -> float:
    """Of one call, after one that is not timed."""
    times = []
    for _ in range(passes + 1):
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def latencies(run: Callable[[np.ndarray[Any, Any]], Any]) -> list[tuple[float, float]]:
    """p50 and p99 in milliseconds of single requests, ids on the host to vector on the host."""
    found = []
    for length in ONE:
        ids = np.random.default_rng(length).integers(5, 30000, length)
        times = []
        for _ in range(LATENCIES + 20):
            started = time.perf_counter()
            run(ids)
            times.append(1e3 * (time.perf_counter() - started))
        cut = statistics.quantiles(times[20:], n=100)
        found.append((cut[49], cut[98]))
    return found
