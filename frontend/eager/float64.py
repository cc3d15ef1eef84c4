"""A model run in float64: as a copy, or without one, where each operator reads the weights widened and lets that go."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.compat.torch import Standing, TorchDispatchMode, pytree

# Reads a few rows of a large table: the rows are widened, not the table.
LOOKUPS = (torch.ops.aten.embedding.default,)
DETACH = torch.ops.aten.detach.default
# Bytes of widened weights that are kept for the next run of the same module: an attention's of width 2048.
KEPT = 1 << 27


def in_float64(module: nn.Module) -> nn.Module:
    """A copy in float64, each weight widened as it is copied: no second copy as wide as the original is made first.

    Of the tables that embeddings look up, often half of a model, only the rows are widened that a run asks for.
    """
    tables = {id(inner.weight) for inner in module.modules() if isinstance(inner, nn.Embedding)}
    wide: dict[int, Any] = {}
    for weight in (*module.parameters(), *module.buffers()):
        if weight.is_floating_point():
            made = Table(weight.detach(), []) if id(weight) in tables else weight.detach().double()
            wide[id(weight)] = nn.Parameter(made, weight.requires_grad) if isinstance(weight, nn.Parameter) else made
    return copy.deepcopy(module, wide).double()


class Table(Standing):
    """A table in float64 whose rows are widened as they are looked up, and which is widened whole for all else."""

    def __new__(cls, held: Tensor, kept: list[Tensor]) -> Table:
        """Stand for a table of less width; `kept` is empty until all of it is widened, and shared by all that do."""
        return super().__new__(cls, held, torch.float64)  # type: ignore[return-value]

    def __init__(self, held: Tensor, kept: list[Tensor]) -> None:
        """Nothing is widened yet."""
        self.held, self.kept = held, kept

    def whole(self) -> Tensor:
        """All of it."""
        if not self.kept:
            self.kept.append(self.held.double())
        return self.kept[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A table of its own."""
        made = Table(copy.deepcopy(self.held, memo), copy.deepcopy(self.kept, memo))
        return nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A lookup widens what it finds; another operator reads, or writes, the whole."""
        given, table = kwargs or {}, args[0]
        if func is DETACH:
            return cls(table.held, table.kept)
        if func in LOOKUPS and not table.kept:
            return func(table.held, *args[1:], **given).double()
        args, given = pytree.tree_map_only(Table, Table.whole, (args, given))
        return func(*args, **given)


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
