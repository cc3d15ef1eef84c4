"""A model run in float64 without a copy of its weights: each operator reads them widened, and lets that go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.compat.torch import TorchDispatchMode, pytree

# Reads a few rows of a large table: the rows are widened, not the table.
LOOKUPS = (torch.ops.aten.embedding.default,)
# Bytes of widened weights that are kept for the next run of the same module: an attention's of width 2048.
KEPT = 1 << 27


class Widened(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every floating value is float64, whatever dtype the code and the weights name."""

    def __init__(self) -> None:
        """Nothing to choose."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        self._size = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """The operator on widened arguments, its results widened too."""
        given = (args, kwargs or {})
        if func not in LOOKUPS:
            given = pytree.tree_map_only(torch.dtype, _wide_dtype, pytree.tree_map_only(Tensor, self._wide, given))
        return pytree.tree_map_only(Tensor, _wide, func(*given[0], **given[1]))

    def _wide(self, value: Tensor) -> Tensor:
        """A weight that was widened a moment ago is not widened again: probes run one module many times."""
        if not isinstance(value, nn.Parameter):
            return _wide(value)
        if id(value) not in self._kept:
            self._keep(value, _wide(value))
        return self._kept[id(value)][1]

    def _keep(self, weight: Tensor, wide: Tensor) -> None:
        # With the weight itself, lest another be made in its place under the same id.
        self._kept[id(weight)] = weight, wide
        self._size += wide.nbytes
        while self._size > KEPT and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1][1].nbytes


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype
