"""Assertions about sizes that the export could not prove and left in the graph: tried at many sizes instead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.frontend.eager.signature import DECODED
from headrace.ir import SEQUENCE, Axis

BATCHES = (1, 2, 5)
# Around powers of two and their multiples, where chunks and blocks begin.
LENGTHS = tuple(sorted({1, 2, 3, 5, 7, *(2**i + near for i in range(3, 13) for near in (-1, 0, 1)), 96, 1000}))
# Of an encoder-decoder's target, beside each of those.
TARGETS = (1, 2, 3, 7, 64)
ASSERTION = torch.ops.aten._assert_scalar.default
SIZE = torch.ops.aten.sym_size.int


class BrokenAssertion(ValueError):
    """A size breaks an assertion; `holds_to` is the longest sequence up to which all hold, None where none is known."""

    def __init__(self, said: str, holds_to: int | None) -> None:
        """Say so in words."""
        super().__init__(said)
        self.holds_to = holds_to


def broken_assertion(exported: ExportedProgram, longest: int | None, along: Axis = SEQUENCE) -> str | None:
    """The first size that breaks an assertion of the graph, in words; None where all hold.

    Args:
        longest: the longest sequence that the model takes, None where nothing bounds it.
        along: the free axis of the inputs, beside the batch's.
    """
    asserted = [node for node in exported.graph.nodes if node.target is ASSERTION]
    lengths = {along.at(rows) + more for rows in LENGTHS for more in (0, along.stride - 1)}
    lengths |= set() if longest is None else {longest}
    targets = TARGETS if any(name in DECODED for name in graphs.inputs_of(exported)) else (1,)
    for batch, length, target in itertools.product(BATCHES, sorted(lengths), targets) if asserted else ():
        if (longest is None or length <= longest) and _breaks(asserted, (batch, length, target)):
            return f"what the graph assumes of sizes is wrong at a batch of {batch} and a length of {length}"
    return None


def holds_to(exported: ExportedProgram) -> int | None:
    """The longest sequence up to which every length keeps all assertions; None where none of those tried breaks one."""
    asserted = [node for node in exported.graph.nodes if node.target is ASSERTION]
    broken = (length for length in range(1, max(LENGTHS) + 1) if _breaks(asserted, (1, length, 1)))
    first = next(broken, None)
    return None if first is None else first - 1


def _breaks(asserted: list[fx.Node], sizes: tuple[int, int, int]) -> bool:
    values: dict[fx.Node, Any] = {}
    held = (_value(node.args[0], sizes, values) for node in asserted)
    return any(one is not None and not one for one in held)


def _value(node: Any, sizes: tuple[int, int, int], values: dict[fx.Node, Any]) -> Any:
    """A number of the graph, computed from the sizes of the inputs alone; None where it depends on what they hold.

    Of those an assertion is the model's own: its eager code would stop there too.
    """
    if not isinstance(node, fx.Node):
        return node
    for inner in _pending(node, values):
        if inner.target is SIZE:
            values[inner] = _size(inner, sizes)
        elif inner.op == "call_function" and not isinstance(inner.meta.get("val"), torch.Tensor):
            arguments = [values[arg] if isinstance(arg, fx.Node) else arg for arg in inner.args]
            known = all(value is not None for value in arguments)
            values[inner] = inner.target(*arguments) if known else None  # type: ignore[operator]
        else:
            values[inner] = None
    return values[node]


def _size(node: fx.Node, sizes: tuple[int, int, int]) -> int | None:
    """A size of any tensor, where it follows from the sizes of the inputs alone."""
    size: Any = node.meta["val"]
    batch, length, target = sizes
    symbols = {
        one.node.expr: given
        for n in node.graph.nodes
        if n.op == "placeholder"
        for one, given in zip(n.meta["val"].shape[:2], (batch, target if n.name in DECODED else length), strict=False)
        if isinstance(one, torch.SymInt)
    }
    value: Any = size.node.expr.subs(symbols) if isinstance(size, torch.SymInt) else size
    return int(value) if getattr(value, "is_Integer", True) else None


def _pending(node: fx.Node, values: dict[fx.Node, Any]) -> Iterator[fx.Node]:
    """The nodes that a number is computed from, first things first."""
    needed, todo = dict[fx.Node, None](), [node]
    while todo:
        one = todo.pop()
        if one not in values and one not in needed:
            needed[one] = None
            if not isinstance(one.meta.get("val"), torch.Tensor) and one.target is not SIZE:
                todo += one.all_input_nodes
    order = {other: place for place, other in enumerate(node.graph.nodes)}
    yield from sorted(needed, key=order.__getitem__)
