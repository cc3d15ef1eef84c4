"""Faults that a target could have, made by rewriting the graph of what it compiles: what `parity check` must catch."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from headrace import graphs
from headrace.ops.attention import ATTENTION, MASK
from headrace.ops.packed import ATTENTION_VARLEN

ATEN = torch.ops.aten
SCALE, KIND, WINDOW = 6, 7, 8


class Broken:
    """A backend that compiles another graph than it is given, and is the honest one in all else."""

    def __init__(self, backend: Any, edit: graphs.Edit) -> None:
        self._backend, self._edit = backend, edit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def compile(self, program: Any) -> Any:
        return self._backend.compile(program.with_(exported=graphs.rewrite(program.graph, self._edit)))


def of(graph: fx.Graph, *targets: Any) -> list[fx.Node]:
    found = [node for node in graph.nodes if node.target in targets]
    assert found, f"the graph has no {targets}: the defect would be none"
    return found


def swap(node: fx.Node, place: int, value: Any) -> None:
    args = list(node.args)
    args[place] = value
    node.args = tuple(args)


def padding_leak(graph: fx.Graph) -> None:
    """Tokens of the padding are attended to."""
    for node in of(graph, MASK):
        swap(node, 0, None)


def window_off_by_one(graph: fx.Graph) -> None:
    """One key more on either side."""
    for node in of(graph, ATTENTION, ATTENTION_VARLEN, MASK):
        place = 7 if node.target is MASK else WINDOW
        left, right = cast(list[int], node.args[place])
        if left > 0:
            swap(node, place, [left + 1, right + (right > 0)])


def causal_for_bidirectional(graph: fx.Graph) -> None:
    for node in of(graph, ATTENTION, ATTENTION_VARLEN, MASK):
        swap(node, 6 if node.target is MASK else KIND, "causal")


def scale_off(graph: fx.Graph) -> None:
    """By 5%, in the second layer alone."""
    node = of(graph, ATTENTION, ATTENTION_VARLEN)[1]
    swap(node, SCALE, 1.05 * node.args[SCALE])


def rope_in_half(graph: fx.Graph) -> None:
    """The angles are rounded to bfloat16 before their sine and cosine."""
    for node in of(graph, ATEN.cos.default, ATEN.sin.default):
        angle: Any = node.args[0]
        with graph.inserting_before(node):
            half = graphs.call(graph, ATEN.to.dtype, (angle, torch.bfloat16))
            swap(node, 0, graphs.call(graph, ATEN.to.dtype, (half, angle.meta["val"].dtype)))


def softmax_in_half(graph: fx.Graph) -> None:
    """Scores, exponentials and weights of the first attention are rounded to bfloat16, one after another."""
    node = of(graph, ATTENTION)[0]
    q, k, v, mask = node.args[:4]

    def call(target: Any, *args: Any) -> fx.Node:
        return graphs.call(graph, target, args)

    with graph.inserting_before(node):
        scores = call(
            ATEN.mul.Tensor, call(ATEN.matmul.default, q, call(ATEN.transpose.int, k, 2, 3)), node.args[SCALE]
        )
        scores = call(ATEN.to.dtype, scores, torch.bfloat16)
        if mask is not None:
            scores = call(ATEN.masked_fill.Scalar, scores, call(ATEN.logical_not.default, mask), -torch.inf)
        powers = call(ATEN.exp.default, call(ATEN.sub.Tensor, scores, call(ATEN.amax.default, scores, [-1], True)))
        weights = call(ATEN.div.Tensor, powers, call(ATEN.sum.dim_IntList, powers, [-1], True))
        weights = call(ATEN.to.dtype, weights, v.meta["val"].dtype)
        rows = call(ATEN.transpose.int, call(ATEN.matmul.default, weights, v), 1, 2)
        rows = call(ATEN.contiguous.default, rows)
    node.replace_all_uses_with(rows)


def token_types_zeroed(graph: fx.Graph) -> None:
    given = next(node for node in graph.nodes if node.name == "token_type_ids")
    with graph.inserting_after(given):
        zeros = graphs.call(graph, ATEN.zeros_like.default, (given,))
    given.replace_all_uses_with(zeros, delete_user_cb=lambda user: user is not zeros)


def tanh_for_erf(graph: fx.Graph) -> None:
    """GELU by its tanh approximation."""
    for node in of(graph, ATEN.gelu.default):
        node.kwargs = {"approximate": "tanh"}
