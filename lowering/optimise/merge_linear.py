"""Merge linear layers that read the same rows: one large product in place of several small ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.ir import Program

LINEAR, SLICE = torch.ops.aten.linear.default, torch.ops.aten.slice.Tensor
VIEW, RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
Group = tuple[fx.Node, ...]
# The placeholders of a group's weights and of its biases, None for a layer without one.
Key = tuple[tuple[str, str | None], ...]

# Programs of one model merge the same layers, and share what that makes.
MERGED = graphs.Derived(lambda *parts: torch.cat(parts))


@dataclass(frozen=True)
class MergeLinear:
    """No two linear layers read the same rows: queries, keys and values, or gate and up, are one product."""

    name: str = "merge"

    def __call__(self, program: Program) -> Program:
        """Put the weights below one another, and give each reader its columns of the product."""
        held = graphs.weights_of(program.graph)
        groups = _groups(program.graph.graph, held)
        weights: dict[str, Tensor] = {}
        for key in {_key(group): None for group in groups}:
            number = len(weights) // 2
            weights[f"merged_{number}_weight"] = MERGED(*(held[weight].detach() for weight, _ in key))
            weights[f"merged_{number}_bias"] = MERGED(*(_bias(held, *layer) for layer in key))
        if not groups:
            return program
        exported = graphs.rewrite(graphs.with_weights(program.graph, weights), lambda graph: _merge(graph, held))
        return program.with_(exported=exported)


def _groups(graph: fx.Graph, held: dict[str, Tensor]) -> list[Group]:
    """The linear layers by what they read, where there are several and all their weights are the program's."""
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is LINEAR and all(arg.name in held for arg in node.args[1:] if arg is not None):
            readers.setdefault(node.args[0], []).append(node)
    return [tuple(nodes) for nodes in readers.values() if len({node.args[1] for node in nodes}) > 1]


def _key(group: Group) -> Key:
    """What a group computes with; layers that share their weights share the merged ones."""
    return tuple(
        (str(node.args[1]), str(node.args[2]) if len(node.args) > 2 and node.args[2] else None) for node in group
    )


def _bias(held: dict[str, Tensor], weight: str, bias: str | None) -> Tensor:
    """A layer without a bias adds zeros, where another of its group has one."""
    return held[bias].detach() if bias else held[weight].new_zeros(held[weight].shape[0])


def _merge(graph: fx.Graph, held: dict[str, Tensor]) -> None:
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    numbers: dict[Key, int] = {}
    for group in _groups(graph, held):
        number = numbers.setdefault(_key(group), len(numbers))
        biased = any(bias for _, bias in _key(group))
        weight, bias = given[f"merged_{number}_weight"], given[f"merged_{number}_bias"] if biased else None
        with graph.inserting_before(group[0]):
            product = graphs.call(graph, LINEAR, (group[0].args[0], weight, bias))
            begin = 0
            for node in group:
                end = begin + node.meta["val"].shape[-1]
                columns = graphs.call(graph, SLICE, (product, -1, begin, end))
                begin = end
                _give(node, columns)


def _give(node: fx.Node, columns: fx.Node) -> None:
    """Columns of a wider product do not lie densely, which a view of them may not assume."""
    for user in list(node.users):
        if user.target is VIEW:
            user.target = RESHAPE
    node.replace_all_uses_with(columns)
