"""A packed graph in terms of our kernels: what the GPU targets compile."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from headrace import graphs
from headrace.backends.kernels import pooling  # noqa: F401 - registers the operators
from headrace.backends.kernels.attention.op import Form, tile_rows, tuning_for
from headrace.backends.kernels.linear_activation.match import with_activations
from headrace.backends.kernels.rotary.match import with_rotations
from headrace.backends.kernels.tuning import PRODUCTS, Blocks
from headrace.ir import OFFSETS, Window
from headrace.ops.packed import ATTENTION_VARLEN, POOL_VARLEN

TILES = torch.ops.headrace.varlen_tiles.default
ATTENTION_TRITON = torch.ops.headrace.attention_varlen_triton.default
POOL_TRITON = torch.ops.headrace.pool_varlen_triton.default


def with_kernels(exported: ExportedProgram, family: str) -> ExportedProgram:
    """The graph with our kernels for its packed operators. The tiles of a batch are listed once and shared.

    Args:
        family: the architecture whose tunings they take, as `tuning.family` names it.
    """
    return graphs.rewrite(exported, lambda graph: _swap(graph, family))


def _swap(graph: fx.Graph, family: str) -> None:
    with_rotations(graph)
    if family in PRODUCTS:
        with_activations(graph, family)
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    offsets, ids = given[OFFSETS], given["input_ids"]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        tokens = graphs.call(graph, torch.ops.aten.sym_size.int, (ids, 1))
    tiles: dict[int, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is ATTENTION_VARLEN:
            blocks, rows = _tuned(node, family)
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
    q, k, v = (arg.meta["val"] for arg in node.args[:3])  # type: ignore[union-attr]
    scale, kind, window, softcap, bias_kind, length = node.args[6:]
    form = Form(scale, kind, Window(*window), softcap, bias_kind)  # type: ignore[arg-type, misc]
    blocks = tuning_for(q, v, length, form, family)  # type: ignore[arg-type]
    return blocks, tile_rows(q, k, blocks)


def _attention(graph: fx.Graph, node: fx.Node, tiles: fx.Node, blocks: Blocks) -> fx.Node:
    q, k, v, _, sinks, bias, *form, _length = node.args
    with graph.inserting_before(node):
        return graphs.call(graph, ATTENTION_TRITON, (q, k, v, tiles, blocks.numbers, sinks, bias, *form))


def _replace(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)
