"""Split a program over devices: each has some heads of every attention and some columns of every feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.compat.torch import ALL_REDUCE, WAIT, enable_python_dispatcher, pytree
from headrace.graphs.surgery import fake_mode
from headrace.graphs.views import arguments
from headrace.ir import Program
from headrace.lowering.parallel.placement import Placement, placement, product_of
from headrace.lowering.parallel.shard import Shard, shape_of

aten = torch.ops.aten
VIEWS = frozenset({aten.view.default, aten.reshape.default, aten.expand.default})
SPLITS = frozenset({aten.split.Tensor, aten.split_with_sizes.default})
# Weights of one model in parts, made once however many programs hold them.
PART = graphs.Derived(lambda weight, dim, rows: weight.index_select(int(dim), rows).contiguous())


@dataclass(frozen=True)
class SplitHeads:
    """A device's part of the program: it answers as the whole one does, once each sum is taken over all devices.

    Attributes:
        rank: which of them it is.
        ranks: how many there are.
        group: the process group that sums, by its name.
    """

    rank: int
    ranks: int
    group: str
    name: str = "split"

    def __call__(self, program: Program) -> Program:
        """Cut the weights, and put a sum after each product that parts go into.

        Raises:
            TargetError: names the node that keeps the program whole, and the rule.
        """
        found = placement(program, self.ranks)
        held = {node.name: shard for node, shard in found.shards.items() if node.op == "placeholder"}
        values = _values(program, held)
        parts = {f"part_of_{name}": self._part(values[name], shard) for name, shard in held.items()}
        exported = graphs.rewrite(graphs.with_weights(program.graph, parts), lambda graph: self._cut(graph, found))
        heads = tuple(
            replace(spec, q_heads=spec.q_heads // self.ranks, kv_heads=spec.kv_heads // self.ranks)
            for spec in program.nodes.attention
        )
        return program.with_(exported=exported, attention=heads)

    def _part(self, weight: Tensor, shard: Shard) -> Tensor:
        rows = torch.tensor(shard.indices(self.rank))
        return PART(weight.detach(), torch.tensor(shard.dim), rows)

    def _cut(self, graph: fx.Graph, found: Placement) -> None:
        """Rewrite a copy of the graph."""
        shards = {node.name: shard for node, shard in found.shards.items()}
        rows = {node.name for node in found.rows}
        sizes = {node.name: shape_of(node) for node in found.shards}
        given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        for name in shards:
            if name in given:
                given[name].replace_all_uses_with(given[f"part_of_{name}"])
        for node in list(graph.nodes):
            if node.name in rows:
                self._sum(graph, node)
            elif node.name in shards and node.op == "call_function":
                self._narrow(node, shards, sizes)
                _measure(graph, node)

    def _sum(self, graph: fx.Graph, node: fx.Node) -> None:
        """The product of a part, summed over the devices; then the bias, once."""
        one = product_of(node)
        target = aten.linear.default if node.target is aten.linear.default else aten.mm.default
        with graph.inserting_before(node):
            product = graphs.call(graph, target, (one.rows, one.weight), like=node)
            summed = graphs.call(graph, WAIT, (graphs.call(graph, ALL_REDUCE, (product, "sum", self.group)),))
            made = summed if one.bias is None else graphs.call(graph, aten.add.Tensor, (summed, one.bias))
        graphs.replace(node, made)

    def _narrow(self, node: fx.Node, shards: Mapping[str, Shard], sizes: Mapping[str, tuple[Any, ...]]) -> None:
        """Say sizes and places of the part, where a node says those of the whole."""
        shard = shards[node.name]
        if node.target in VIEWS:
            asked = list(node.args[1])  # type: ignore[arg-type]
            if asked[shard.dim] != -1:
                asked[shard.dim] = len(shard.indices(self.rank))
            node.args = (node.args[0], asked, *node.args[2:])
        elif node.target is aten.slice.Tensor:
            self._narrow_slice(node, shards)
        elif node.target in SPLITS:
            self._narrow_split(node, shard)

    def _narrow_slice(self, node: fx.Node, shards: Mapping[str, Shard]) -> None:
        source: Any = node.args[0]
        whole, given = shards[source.name], arguments(node)
        if given.get("dim", 0) % len(shape_of(node)) == whole.dim:
            begin, end, _ = slice(given.get("start"), given.get("end")).indices(len(whole.owners))
            places = [sum(owner == self.rank for owner in whole.owners[:place]) for place in (begin, end)]
            node.args, node.kwargs = (source, whole.dim, *places), {}

    def _narrow_split(self, node: fx.Node, shard: Shard) -> None:
        given = arguments(node)
        pieces: Any = node.meta["val"]
        if given.get("dim", 0) % pieces[0].dim() != shard.dim:
            return
        counts, begin = list[int](), 0
        for piece in pieces:
            end = begin + piece.shape[shard.dim]
            counts.append(sum(owner == self.rank for owner in shard.owners[begin:end]))
            begin = end
        node.target = aten.split_with_sizes.default
        node.args, node.kwargs = (node.args[0], counts, shard.dim), {}


def _measure(graph: fx.Graph, node: fx.Node) -> None:
    """Work out what a node's value now looks like."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda one: one.meta["val"], (node.args, dict(node.kwargs)))
    with fake_mode(graph), enable_python_dispatcher(), torch.no_grad():
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _values(program: Program, held: Mapping[str, Shard]) -> dict[str, Tensor]:
    """Weights, buffers and constants by the names of their placeholders."""
    exported = program.graph
    found = {**exported.constants, **exported.state_dict}
    specs = exported.graph_signature.input_specs
    return {spec.arg.name: found[str(spec.target)] for spec in specs if spec.arg.name in held}
