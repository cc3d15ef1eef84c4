"""A packed or cached graph compiled for any size of its free axes: layers that repeat once, and weights as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from headrace import debug
from headrace.backends.gpu.parts import compile_parts, split
from headrace.compat.torch_compile import Bounds, Sizes
from headrace.graphs import HALVES
from headrace.ir import Program, Role
from headrace.utils.scratch import room_told

MOST_BLOCKS = 1 << 30  # of a cache, or rows
# What torch.export writes of sizes, in words of Python.
PYTHONS: dict[Any, Any] = {torch.sym_min: min, torch.sym_max: max}


class Made(NamedTuple):
    """Code for the sizes between bounds that fulfil what it needs, where it needs anything."""

    run: Callable[..., Any]
    bounds: Mapping[str, Bounds]
    needs: Callable[[Mapping[str, int]], bool] | None

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it answers for those."""
        within = all(bounds.least <= sizes[name] <= bounds.most for name, bounds in self.bounds.items())
        return within and (self.needs is None or self.needs(sizes))


class Code:
    """What answers for any size: code that is compiled on a sample, and anew where that needed what others have not."""

    def __init__(self, module: fx.GraphModule, program: Program, inputs: Sequence[Tensor], longest: int) -> None:
        """Compile it.

        Args:
            module: the graph on its device, with its weights as attributes.
            program: whose graph that is.
            inputs: a sample, in the program's order, as full as rows are: tiles are chosen for it.
            longest: how many tokens a row has at most.
        """
        self._weights = split(in_pythons_words(module))
        self._module, self._program, self._longest = module, program, longest
        self._free = _free(program, inputs)
        self._made = [self._compiled(inputs)]

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Run on inputs in the program's order."""
        sizes = self._sizes(inputs)
        made = next((one for one in self._made if one.holds(sizes)), None)
        if made is None:
            debug.say(debug.STAGES, f"compiled anew, since what there is does not hold for {sizes}")
            self._made.append(made := self._compiled(inputs))
        answers: Sequence[Tensor] = made.run(*inputs, *self._weights)
        return answers

    def _sizes(self, inputs: Sequence[Tensor]) -> dict[str, int]:
        return {name: inputs[order].shape[place] for name, (order, place) in self._free.items()}

    def _compiled(self, inputs: Sequence[Tensor]) -> Made:
        found, sizes = self._sizes(inputs), Sizes()
        bounds = {name: self._bounds(order, found[name]) for name, (order, _) in self._free.items()}
        given = []
        for one, names in zip(inputs, _names(self._program, inputs), strict=True):
            shape = [
                size if name is None else sizes.size(name, size, bounds[name])
                for name, size in zip(names, one.shape, strict=True)
            ]
            given.append(sizes.tensor(shape, one))
        given += map(sizes.weight, self._weights)
        with room_told("The compiled model"):
            run = compile_parts(self._module, sizes, given, compiler_options(self._program))
        return Made(run, bounds, sizes.require())

    def _bounds(self, order: int, example: int) -> Bounds:
        """A bound lets Inductor choose the width of its indices once. Zero and one are sizes of their own to torch."""
        role = self._program.signature.inputs[order].role
        most = MOST_BLOCKS if role is Role.CACHE else self._longest
        return Bounds(min(3 if role is Role.OFFSETS else 2, example), max(most, example))


def _names(program: Program, inputs: Sequence[Tensor]) -> list[list[str | None]]:
    """For each dimension of each input the name of its size, None where that is fixed.

    Axes of one name have one size, but those of caches, which grow each by itself.
    """
    return [
        [
            None if axis.size is not None or size == 1 else f"{given.name}.{axis.name}" * own or axis.name
            for axis, size in zip(given.axes, one.shape, strict=True)
        ]
        for given, one in zip(program.signature.inputs, inputs, strict=True)
        for own in [given.role is Role.CACHE]
    ]


def _free(program: Program, inputs: Sequence[Tensor]) -> dict[str, tuple[int, int]]:
    """Where each free size is first read: the input and its dimension."""
    places: dict[str, tuple[int, int]] = {}
    for order, names in enumerate(_names(program, inputs)):
        for place, name in enumerate(names):
            if name is not None:
                places.setdefault(name, (order, place))
    return places


def compiler_options(program: Program) -> dict[str, Any]:
    """Inductor's, beside what it does by itself."""
    return {
        # Padding of small products is decided by guards on sizes, which would compile again for other sizes.
        "shape_padding": False,
        # exp without its care for the smallest floats, 1e-38, of which no half-precision result shows anything.
        "use_fast_math": getattr(torch, program.dtype) in HALVES,
    }


def in_pythons_words(module: fx.GraphModule) -> fx.GraphModule:
    """The module itself, in words of Python where it asks for sizes."""
    for node in module.graph.nodes:
        node.target = PYTHONS.get(node.target, node.target)
    module.recompile()
    return module
