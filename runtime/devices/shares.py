"""How requests are dealt out: by tokens, so that the devices end together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.places import Numbers


def quotas(total: int, loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many of so many tokens each device gets, so that all have as much before them as they can.

    Args:
        loads: tokens that each has been given and not answered, int64 [devices].
    """
    order = np.argsort(loads, kind="stable")
    level, held = 0.0, 0
    for count, device in enumerate(order, 1):
        held += int(loads[device])
        level = (total + held) / count
        if count == len(order) or level <= loads[order[count]]:
            break
    found: NDArray[np.float64] = np.maximum(0.0, level - loads)
    return found


def dealt(lengths: NDArray[np.int64], loads: NDArray[np.int64]) -> list[Numbers]:
    """The places of each device's requests, ascending: of every length about as many as its quota is of the whole."""
    devices, order = len(loads), np.argsort(-lengths, kind="stable")
    mixed = np.concatenate([order[begin::devices] for begin in range(devices)])
    ends = lengths[mixed].cumsum()
    bounds = np.searchsorted(ends - lengths[mixed] / 2, quotas(int(lengths.sum()), loads).cumsum()[:-1])
    return [np.sort(own) for own in np.split(mixed, bounds)]
