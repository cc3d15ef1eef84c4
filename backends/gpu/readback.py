"""What a device made, on its way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


class Host:
    """A copy to the host under way, in memory of its own; `np.asarray` waits for it."""

    def __init__(self, output: Tensor) -> None:
        """Begin to copy, on the stream that computes the output."""
        self._array = torch.empty(output.shape, dtype=torch.float32, pin_memory=True)
        self._array.copy_(output.float(), non_blocking=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """The array, once it is there."""
        self._done.synchronize()
        array: Floats = self._array.numpy()
        return array


class Answer:
    """A copy to the host under way, in memory that is another's once this was read; `np.asarray` waits for it.

    Attributes:
        taken: whether it was read.
    """

    def __init__(self, done: torch.cuda.Event, array: Floats) -> None:
        """`array` holds it once the event is `done`."""
        self._done, self._array = done, array
        self.taken = False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """A copy of the array, once it is there."""
        if not self.taken:
            self._done.synchronize()
            self._array, self.taken = self._array.copy(), True
        return self._array


def pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of the host that a device copies from and to by itself, where there is one."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=torch.cuda.is_available())
