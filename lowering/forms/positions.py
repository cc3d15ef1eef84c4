"""Positions that a graph makes of its own, as an input: what comes of a sequence need not begin at its first token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from headrace import sample
from headrace.ir import PositionSource, Program, Role

# Unpadded texts of these lengths, two of them a batch: an index of tokens counts on over the batch (routed experts
# make one), a position begins anew.
LENGTHS, TEXTS = (5, 9), 2
INTEGERS = (torch.int64, torch.int32, torch.float32)
POSITIONS = "positions"


def own_positions(program: Program, module: fx.GraphModule) -> dict[fx.Node, int]:
    """The nodes whose value is `arange(length) + first` on any unpadded text, each with its first. Told by value."""
    if program.facts.positions.source is PositionSource.INPUT:
        return {}
    seen: dict[fx.Node, list[int | None]] = {}
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    for length in LENGTHS:
        given = sample.batch(program, torch.ones((TEXTS, length), dtype=torch.bool))
        with torch.no_grad():
            _Looking(module, length, seen).run(*(given[name] for name in names))
    return {
        node: firsts[0]
        for node, firsts in seen.items()
        if len(firsts) == len(LENGTHS) and firsts[0] is not None and firsts.count(firsts[0]) == len(firsts)
    }


class _Looking(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, length: int, seen: dict[fx.Node, list[int | None]]) -> None:
        super().__init__(module)
        self.length, self.seen = length, seen

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, Tensor) and value.dtype in INTEGERS and value.dim():
            rows = value.numel() // self.length
            if value.shape[-1] == self.length and rows in (1, TEXTS):
                self.seen.setdefault(n, []).append(_first(value.reshape(rows, self.length).float()))
        return value


def _first(rows: Tensor) -> int | None:
    """What every row counts from, None where one does not count."""
    counted = rows[0, 0] + torch.arange(rows.shape[1])
    return int(rows[0, 0]) if bool((rows == counted).all()) and float(rows[0, 0]).is_integer() else None


def feed_positions(graph: fx.Graph, own: dict[fx.Node, int], positions: fx.Node) -> None:
    """Have what read the graph's own positions [.., L] read those that are given, int64 [1, T], from 0 on."""
    for node, first in own.items():
        if all(user in own for user in node.users):
            continue  # what leaves the family of positions is replaced, and what made it dies
        value = node.meta["val"]
        with graph.inserting_before(node.next):
            new = graph.call_function(torch.ops.aten.add.Scalar, (positions, first))
            if value.dtype != torch.int64:
                new = graph.call_function(torch.ops.aten.to.dtype, (new, value.dtype))
            if value.dim() == 1:
                new = graph.call_function(torch.ops.aten.select.int, (new, 0, 0))
            elif value.dim() > 2:
                new = graph.call_function(torch.ops.aten.view.default, (new, [1] * (value.dim() - 1) + [-1]))
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in own)


def given_positions(program: Program, graph: fx.Graph, after: fx.Node) -> fx.Node:
    """The input of positions, made after another where the graph has none."""
    name = program.signature.name(Role.POSITIONS) or POSITIONS
    held: fx.Node | None = next((node for node in graph.nodes if node.op == "placeholder" and node.name == name), None)
    if held is not None:
        return held
    with graph.inserting_after(after):
        made: fx.Node = graph.placeholder(name)
    return made
