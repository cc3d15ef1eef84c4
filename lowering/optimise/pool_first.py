"""Choose a sequence's row before what is made of single rows: of a language model's logits, those of one row."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from headrace import graphs
from headrace.graphs.views import arguments
from headrace.ir import PoolKind, Program
from headrace.ops.attention import POOL

ATEN = torch.ops.aten
LINEAR, SLICE = ATEN.linear.default, ATEN.slice.Tensor
# What makes a number of one number: caps and scales of logits, and casts.
NUMBERWISE = frozenset(
    {ATEN.mul.Tensor, ATEN.div.Tensor, ATEN.tanh.default, ATEN._to_copy.default, ATEN.to.dtype, ATEN.clone.default}
)
# The kinds that choose a row as it is.
CHOOSING = (PoolKind.CLS, PoolKind.LAST)


@dataclass(frozen=True)
class PoolFirst:
    """No linear layer makes rows of which pooling then chooses one."""

    name: str = "pool"

    def __call__(self, program: Program) -> Program:
        """Pool what the layer reads, and make of that alone what was made of every row."""
        if not any(_between(node) for node in program.graph.graph.nodes):
            return program
        return program.of_graph(graphs.rewrite(program.graph, _move))


def _between(pool: fx.Node) -> list[fx.Node]:
    """The nodes from the first linear layer to a pooling, all of them row by row; none where there is no such layer."""
    if pool.target is not POOL or arguments(pool)["kind"] not in CHOOSING:
        return []
    found, node = [], arguments(pool)["hidden"]
    while isinstance(node, fx.Node) and len(node.users) - len(_asserting(node)) == 1 and _is_rowwise(node):
        found.append(node)
        if node.target is LINEAR:
            return found[::-1]
        node = node.args[0]
    return []


def _asserting(node: fx.Node) -> list[fx.Node]:
    """The nodes that only assert what the node's value is like."""
    return [user for user in node.users if user.target is ATEN._assert_tensor_metadata.default]


def _is_rowwise(node: fx.Node) -> bool:
    if node.target is SLICE:
        return _is_whole(*node.args[1:])
    alone = all(arg is node.args[0] for arg in node.all_input_nodes)
    return node.target is LINEAR or (node.target in NUMBERWISE and alone)


def _is_whole(dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    return dim < 2 and start in (None, 0) and end in (None, sys.maxsize) and step == 1


def _move(graph: fx.Graph) -> None:
    for pool in list(graph.nodes):
        if not (between := _between(pool)):
            continue
        given = arguments(pool)
        with graph.inserting_before(pool):
            made = graphs.call(graph, POOL, (between[0].args[0], given["padding"], given["kind"]), pool)
            for node in between:
                if node.target is not SLICE:
                    made = graphs.call(graph, node.target, (made, *node.args[1:]), node, dict(node.kwargs))
        pool.replace_all_uses_with(made)
        # An assertion has an effect, so it would keep the rows.
        for node in (pool, *(one for old in between for one in _asserting(old))):
            graph.erase_node(node)
    graph.eliminate_dead_code()
