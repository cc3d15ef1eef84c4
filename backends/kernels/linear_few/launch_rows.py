"""A graph for short rows: what is looked up, norms, layers with what is added to them, each a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from headrace.backends.kernels.attention import op
from headrace.backends.kernels.attention.kernel import attend_tiles
from headrace.backends.kernels.early import EarlyLaunch
from headrace.backends.kernels.linear_activation.match import LINEAR, LINEAR_ACTIVATED
from headrace.backends.kernels.linear_few.match import LINEAR_ANY
from headrace.backends.kernels.linear_few.rows import TABLES, embedding, layer, norm
from headrace.backends.kernels.norms import rms_norm
from headrace.backends.kernels.pooling import reduce_sequences, reduced
from headrace.backends.kernels.rotary.match import ROTATE
from headrace.backends.kernels.rotary.op import rotate_rows, rotated
from headrace.backends.kernels.use_kernels import ATTENTION_TRITON, POOL_TRITON
from headrace.graphs import HALVES
from headrace.graphs.views import arguments

aten = torch.ops.aten
ADD, CLONE, LAYER_NORM = aten.add.Tensor, aten.clone.default, aten.layer_norm.default
EMBEDDING = aten.embedding.default
EPS = 1e-5  # of a layer norm whose call says none
# Operators of ours whose kernels begin beside the one ahead of them, as the launches of this graph do. NVIDIA H200, 16
# tokens: bert-base's graph takes 281 microseconds so and 306 without. Those of a step over caches do not: with them one
# sequence makes 783 tokens a second (Qwen3-0.6B's shape), and 885 without; their programs take the room of those that
# fetch weights.
EARLY: dict[Any, EarlyLaunch] = {
    ATTENTION_TRITON: EarlyLaunch(op.launched, (attend_tiles,)),
    ROTATE: EarlyLaunch(rotated, (rotate_rows,)),
    POOL_TRITON: EarlyLaunch(reduced, (reduce_sequences,)),
}
Node = Any  # an fx.Node: what its arguments are is asked for at every step


@dataclass(frozen=True)
class LaunchRows:
    """Tables, layers and norms in half precision. What is left runs as it is: the graph is captured, not compiled."""

    name: str = "launch-rows"

    def __call__(self, graph: fx.Graph) -> None:
        """Put a launch in the place of each."""
        for node in list(graph.nodes):
            if node.target is CLONE and len(node.args) == 1 and not node.kwargs:  # of dropout
                node.replace_all_uses_with(node.args[0])
        graph.eliminate_dead_code()
        for node in list(graph.nodes):
            if node.op != "call_function" or getattr(node.meta.get("val"), "dtype", None) not in HALVES:
                continue
            if (found := _tables(node)) is not None and not _merges(node):
                ids, tables = zip(*found, strict=True)
                _launch(graph, node, embedding, (*ids, *tables))
            elif (layered := _layer(node)) is not None:
                _launch(graph, *layered)
            elif (normed := _norm(node)) is not None:
                _launch(graph, node, norm, normed)
            elif node.target in EARLY:
                _launch(graph, node, EARLY[node.target], node.args)
        graph.eliminate_dead_code()


def _launch(graph: fx.Graph, last: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with graph.inserting_before(last):
        made = graph.call_function(function, args)
    made.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(made)


def _tables(node: Node) -> list[tuple[Node, Node]] | None:
    """The ids and the tables of a sum of what is looked up, of no more tables than a launch takes."""
    if node.target is EMBEDDING:
        table, ids = node.args[:2]
        return [(ids, table)] if table.meta["val"].is_contiguous() else None
    if node.target is not ADD or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return None
    parts = [_tables(one) if len(one.users) == 1 else None for one in node.args]
    found = None if None in parts else [pair for part in parts for pair in part or ()]
    if not found or len(found) > TABLES:
        return None
    sizes = [(ids.meta["val"].shape, table.meta["val"].shape[1]) for ids, table in found]
    return found if all(size == sizes[0] for size in sizes) else None


def _merges(node: Node) -> bool:
    """Whether the one that reads it looks it up itself."""
    return len(node.users) == 1 and _tables(next(iter(node.users))) is not None


def _layer(node: Node) -> tuple[Node, Callable[..., Any], tuple[Any, ...]] | None:
    """The node whose value one launch computes, and the launch: the layer, or what adds to it."""
    if node.target in (LINEAR, LINEAR_ANY):
        x, weight, *rest = node.args
        said = (x, weight, rest[0] if rest else None, "", False, False)
    elif node.target is LINEAR_ACTIVATED:
        said = node.args[:6]
        x, weight = said[:2]
    else:
        return None
    values = [one.meta["val"] for one in (x, weight)]
    if not values[1].is_contiguous() or values[0].dtype is not values[1].dtype:
        return None
    user = next(iter(node.users)) if len(node.users) == 1 else None
    residual = _added(user, node)
    return (node if residual is None else user, layer, (*said, residual))


def _added(node: Node | None, one: Node) -> fx.Node | None:
    """What a sum adds to one of its operands, of the same shape and dtype."""
    if node is None or node.target is not ADD or node.kwargs or len(node.all_input_nodes) != 2:
        return None
    (other,) = (given for given in node.all_input_nodes if given is not one)
    return other if _form(other) == _form(one) else None


def _norm(node: Node) -> tuple[Any, ...] | None:
    """The arguments of `norm` of a node that is one: layer norm, or over the root of the mean square."""
    if node.target is LAYER_NORM:
        given = arguments(node)
        x, weight = given["input"], given.get("weight")
        whole = len(given["normalized_shape"]) == 1 and weight is not None
        return (x, weight, given.get("bias"), given.get("eps", EPS), 0.0, True) if whole else None
    found = rms_norm(node)
    if found is None or _form(found.z) != _form(node):
        return None
    return found.z, found.weight, None, found.eps, found.offset, False


def _form(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.dtype
