"""Make a program return what some of its nodes computed: how two targets are compared inside and not at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import fx

from headrace import graphs
from headrace.errors import TraceError
from headrace.ir import Output, OutputKind, Program, Role
from headrace.ir import Tap as Tapped

ATEN = torch.ops.aten


@dataclass(frozen=True)
class Tap:
    """The program returns, for each token, the values of some nodes side by side, in float32 at least.

    They are one output with a row a token, so that it is padded, packed, fed and read back as any other.

    Attributes:
        nodes: by name, in the order of their columns; None takes every attention, and every recurrence that has a row
            a token.
    """

    nodes: tuple[str, ...] | None = None
    name: str = "tap"

    def __call__(self, program: Program) -> Program:
        """Put the nodes' rows in place of the output.

        Raises:
            TraceError: a node has no row of floats for each token.
        """
        if program.signature.arrays:
            raise TraceError(
                f"The program reads {program.signature.arrays[0].name}: tapped are programs that read token ids."
            )
        chosen = _whole(program) if self.nodes is None else self.nodes
        widths = _widths(program, chosen)
        if lacking := [node for node in chosen if node not in widths]:
            raise TraceError(
                f"{', '.join(lacking)} cannot be compared token by token: a tapped node has one row of floats for each "
                "token of the text."
            )
        if not chosen:
            raise TraceError("The program has no attention and no recurrence with a row a token: nothing is tapped.")
        wide = torch.float64 if program.dtype == "float64" else torch.float32

        def side_by_side(graph: fx.Graph) -> fx.Node:
            named = {node.name: node for node in graph.nodes}
            ids = _ids(program, graph)
            rows = [_rows(graph, named[node], ids, wide) for node in chosen]
            return graphs.call(graph, ATEN.cat.default, (rows, 2))

        exported = graphs.replace_output(program.graph, side_by_side)
        taps = tuple(Tapped(node, widths[node]) for node in chosen)
        output = Output("taps", OutputKind.TAPS, sum(tap.width for tap in taps))
        return program.of_graph(exported, outputs=(output,), taps=taps)


def tappable(program: Program, among: Iterable[str]) -> tuple[str, ...]:
    """Those of the nodes that have a row of floats for each token, in their order."""
    return tuple(_widths(program, tuple(among)))


def _whole(program: Program) -> tuple[str, ...]:
    """Every attention, and every recurrence whose rows are the tokens', in the order of the graph."""
    attending = {spec.node for spec in program.nodes.attention}
    # What a packed form recovers has no node in the padded one, beside which it is held.
    announced = tuple(spec.node for spec in program.nodes.recurrent if not spec.recovered)
    recurring = set(_widths(program, announced))
    return tuple(node.name for node in program.graph.graph.nodes if node.name in attending | recurring)


def _widths(program: Program, names: tuple[str, ...]) -> dict[str, int]:
    """How many floats each of the nodes has for each token, without those that have no row a token."""
    named = {node.name: node for node in program.graph.graph.nodes}
    ids = _ids(program, program.graph.graph)
    found = {name: _width(named[name], ids) for name in names if name in named}
    return {name: width for name, width in found.items() if width is not None}


def _width(node: fx.Node, ids: fx.Node) -> int | None:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    batch, length = ids.meta["val"].shape
    along = [place for place, size in enumerate(value.shape) if _same(size, length)]
    others = [
        size for place, size in enumerate(value.shape) if place not in along and not (place == 0 and _same(size, batch))
    ]
    return prod(others) if len(along) == 1 and all(isinstance(size, int) for size in others) else None


def _rows(graph: fx.Graph, node: fx.Node, ids: fx.Node, wide: torch.dtype) -> fx.Node:
    """The node's values as [batch, length, width]."""
    batch, length = ids.meta["val"].shape
    shape = node.meta["val"].shape
    along = next(place for place, size in enumerate(shape) if _same(size, length))
    if not along or not (_same(shape[0], batch) or shape[0] == 1):
        node, along = graphs.call(graph, ATEN.unsqueeze.default, (node, 0)), along + 1
    inner = [place for place in range(1, node.meta["val"].dim()) if place != along]
    moved = graphs.call(graph, ATEN.permute.default, (node, [0, along, *inner]))
    widths = [int(size) for size in moved.meta["val"].shape[2:]]
    sizes = [graphs.call(graph, ATEN.sym_size.int, (ids, place)) for place in (0, 1)]
    # What is the same for every sequence is repeated for each.
    whole = graphs.call(graph, ATEN.expand.default, (moved, [*sizes, *widths]))
    flat = graphs.call(graph, ATEN.reshape.default, (whole, [*sizes, prod(widths)]))
    return graphs.call(graph, torch.ops.prims.convert_element_type.default, (flat, wide))


def _ids(program: Program, graph: fx.Graph) -> fx.Node:
    """The token ids, whose two sizes are the batch's and the sequence's; of a packed row they are 1 and the tokens."""
    found: fx.Node = next(node for node in graph.nodes if node.name == program.signature.name(Role.IDS))
    return found


def _same(one: object, other: object) -> bool:
    """Whether two sizes are one symbol, or one number."""
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(one.node.expr == other.node.expr)
    return isinstance(one, int) and isinstance(other, int) and one == other
