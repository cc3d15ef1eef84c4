"""raw: what a head returns that no other task is of, as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ir import RawPart
from headrace.runtime.tasks.interface import Answering, Call

Raw = dict[str, NDArray[np.float32]]


def raw(call: Call, texts: Any) -> list[Raw]:
    """See `CompiledModel.raw`."""
    call.lane()
    return parted(call.rows(call.drawn(texts)), call.program.facts.raw)


def parted(answers: list[NDArray[np.float32]], parts: tuple[RawPart, ...]) -> list[Raw]:
    """Each answer's rows [S, W] as the tensors that lie side by side in them, by name."""
    return [dict(_named(rows, parts)) for rows in answers]


def _named(rows: NDArray[np.float32], parts: tuple[RawPart, ...]) -> Any:
    begin = 0
    for part in parts:
        own = rows[:, begin : begin + part.width]
        begin += part.width
        yield part.name, own.reshape(len(own), *part.sizes) if part.per_token else own[0].reshape(part.sizes)


TASK = Answering(raw)
