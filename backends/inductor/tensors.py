"""What the targets of torch share: arrays to tensors and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.ir import Layout
from headrace.target import Target
from headrace.utils.forks import on_living_threads


class OnTensors:
    """Executables take and return tensors of torch, on the CPU; saved ones are packages of compiled code."""

    name: str
    libraries: tuple[str, ...] = ("torch",)
    runs_code = True
    layout = Layout.PADDED

    @property
    def target(self) -> Target:
        """The host."""
        return Target(self.name)

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Each array as a contiguous tensor."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}

    @on_living_threads
    def fetch(self, output: Tensor) -> NDArray[np.float32]:
        """The tensor in float32."""
        array: NDArray[np.float32] = output.float().numpy()
        return array
