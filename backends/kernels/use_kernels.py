"""A packed graph in terms of our kernels: what the GPU targets compile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from headrace import graphs
from headrace.backends.kernels import pooling  # noqa: F401 - registers the operators
from headrace.backends.kernels.attention.op import Form, tile_rows, tuning_for
from headrace.backends.kernels.tuning import Blocks
from headrace.graphs.views import arguments, in_order
from headrace.ir import OFFSETS, Window
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN

TILES = torch.ops.headrace.varlen_tiles.default
ATTENTION_TRITON = torch.ops.headrace.attention_varlen_triton.default
POOL_TRITON = torch.ops.headrace.pool_varlen_triton.default


@dataclass(frozen=True)
class UseKernels:
    """Packed attention and pooling are our kernels. The tiles of a batch are listed once and shared.

    Attributes:
        family: the architecture whose tunings they take, as `tuning.family` names it.
        ids: the name of the input whose second size is the row's tokens.
    """

    family: str
    ids: str
    name: str = "use-kernels"

    def __call__(self, graph: fx.Graph) -> None:
        """Put them there."""
        given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        offsets, ids = given[OFFSETS], given[self.ids]
        first = next(node for node in graph.nodes if node.op != "placeholder")
        with graph.inserting_before(first):
            tokens = graphs.call(graph, graphs.SIZE, (ids, 1))
        tiles: dict[int, fx.Node] = {}
        for node in list(graph.nodes):
            if node.target is ATTENTION_VARLEN:
                blocks, rows = _tuned(node, self.family)
                if rows not in tiles:
                    with graph.inserting_after(tokens):
                        tiles[rows] = graphs.call(graph, TILES, (offsets, tokens, rows))
                _replace(graph, node, _attention(graph, node, tiles[rows], blocks))
            elif node.target is POOL_VARLEN:
                with graph.inserting_before(node):
                    pooled = graphs.call(graph, POOL_TRITON, node.args)
                _replace(graph, node, pooled)


def _tuned(node: fx.Node, family: str) -> tuple[Blocks, int]:
    """The attention's tuning, and the rows of a tile that suit it."""
    given = arguments(node)
    q, k, v = (given[name].meta["val"] for name in "qkv")
    form = Form(given["scale"], given["kind"], Window(*given["window"]), given["softcap"], given["bias_kind"])
    blocks = tuning_for(q, v, given["length"], form, family)
    return blocks, tile_rows(q, k, blocks)


def _attention(graph: fx.Graph, node: fx.Node, tiles: fx.Node, blocks: Blocks) -> fx.Node:
    given = arguments(node) | {"tiles": tiles, "blocks": blocks.numbers}
    with graph.inserting_before(node):
        return graphs.call(graph, ATTENTION_TRITON, in_order(ATTENTION_TRITON, given))


def _replace(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)
