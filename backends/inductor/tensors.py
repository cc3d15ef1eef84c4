"""What the targets of torch share: arrays to tensors and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.ir import Layout, Program
from headrace.target import Target
from headrace.utils.forks import on_living_threads


class OnTensors:
    """Executables take and return tensors of torch, on the CPU; saved ones are packages of compiled code."""

    name: str
    libraries: tuple[str, ...] = ("torch",)
    runs_code = True
    layout = Layout.PADDED
    fills_rows = False
    ahead = False
    pools, tensors = True, True

    @property
    def target(self) -> Target:
        """The host."""
        return Target(self.name)

    def layout_of(self, program: Program) -> Layout:
        """The same for every program."""
        return self.layout

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Each array as a contiguous tensor."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}

    def widest_row(self, dtype: str) -> int:
        """Any."""
        return sys.maxsize

    def cache_bytes(self) -> int:
        """Half of what the host has free."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

    def resized(self, array: Tensor | None, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A larger copy, zeros past what there was."""
        made = torch.zeros(shape, dtype=getattr(torch, dtype))
        if array is not None:
            made[: len(array)] = array
        return made

    @on_living_threads
    def fetch(self, output: Tensor) -> NDArray[np.float32]:
        """The tensor in float32."""
        array: NDArray[np.float32] = output.float().numpy()
        return array
