"""torch's compiler given a graph of ours, with no tracer of Python in between: sizes may be free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

__all__ = ["Bounds", "Sizes", "compile_graph"]


class Bounds(NamedTuple):
    """Between what a size lies, both ends included."""

    least: int
    most: int


class Sizes:
    """The free sizes of a graph's inputs, each by a name, and stand-ins for inputs that have them.

    Attributes:
        mode: in which the stand-ins are made.
    """

    def __init__(self) -> None:
        self._shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self._shapes)
        self._known: dict[str, tuple[str, torch.SymInt]] = {}

    def size(self, name: str, example: int, bounds: Bounds) -> torch.SymInt:
        """The size of that name; what is asked of it while a graph is compiled is answered as for the example."""
        if name not in self._known:
            source, range_ = ConstantSource(f"size {name}"), ValueRanges(*bounds)
            constraint = StrictMinMaxConstraint(vr=range_, warn_only=False)
            kind = DimDynamic.DYNAMIC
            symbol = self._shapes.create_symbol(example, source=source, dynamic_dim=kind, constraint_dim=constraint)
            made = self._shapes.create_symintnode(symbol, hint=example, source=source)
            assert isinstance(made, torch.SymInt)
            self._known[name] = str(symbol), made
        return self._known[name][1]

    def tensor(self, shape: Sequence[int | torch.SymInt], like: Tensor) -> Tensor:
        """A contiguous input of that shape, of the dtype and on the device of another."""
        with self.mode:
            return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)

    def weight(self, weight: Tensor) -> Tensor:
        """An input of which no size is free."""
        return self.mode.from_tensor(weight.detach(), static_shapes=True)

    def require(self) -> Callable[[Mapping[str, int]], bool] | None:
        """What compiled code needs of the sizes beyond their bounds, of their values by name; None for nothing."""
        if not self._shapes.guards:
            return None
        printer = PythonPrinter()
        code = " and ".join(f"({printer.doprint(guard.expr)})" for guard in self._shapes.guards)
        symbols = ", ".join(symbol for symbol, _ in self._known.values())
        needed: Callable[..., bool] = eval(f"lambda {symbols}: {code}", dict(SYMPY_INTERP))
        return lambda values: bool(needed(*(values[name] for name in self._known)))


def compile_graph(
    module: fx.GraphModule, sizes: Sizes, inputs: Sequence[Tensor], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile a graph that holds no weights.

    Args:
        inputs: stand-ins that `sizes` made, in the order of the graph's inputs.
        options: Inductor's settings, by name.

    Returns:
        What takes the inputs by position and returns a list, or a tuple. It checks no size.
    """
    with torch.no_grad(), tracing(TracingContext(sizes.mode)):
        made: Any = compile_fx(module, list(inputs), config_patches=dict(options))
    run: Callable[..., Any] = made
    return run
