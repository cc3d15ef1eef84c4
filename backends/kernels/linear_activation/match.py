"""Find linear layers whose output goes into an activation and nowhere else. Needs no Triton."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from headrace import graphs
from headrace.backends.kernels.linear_activation.op import ALIGNED
from headrace.backends.kernels.tuning import PRODUCTS
from headrace.graphs import HALVES

aten = torch.ops.aten
LINEAR, SLICE, SPLIT, CHUNK = aten.linear.default, aten.slice.Tensor, aten.split.Tensor, aten.chunk.default
MUL = aten.mul.Tensor
LINEAR_ACTIVATED = torch.ops.headrace.linear_activated.default
Node = Any  # an fx.Node: what its arguments are is asked for at every step


class Activated(NamedTuple):
    """One that was found.

    Attributes:
        linear: the layer.
        last: the node whose value the one kernel computes.
        kind: of `activated.KINDS`.
        gated: whether half of the layer's columns multiply the activated other half.
        late: whether the activated half is the second.
    """

    linear: fx.Node
    last: fx.Node
    kind: str
    gated: bool
    late: bool


@dataclass(frozen=True)
class FuseLinearActivation:
    """Each layer and its activation is one operator, on the architectures that have a tuning for it.

    Attributes:
        family: the architecture, as `tuning.family` names it.
    """

    family: str
    name: str = "fuse-linear-activation"

    def __call__(self, graph: fx.Graph) -> None:
        """Put one in the place of each such pair."""
        if self.family not in PRODUCTS:
            return
        for found in list(activations(graph)):
            x, weight, *bias = found.linear.args
            with graph.inserting_before(found.last):
                arguments = (x, weight, bias[0] if bias else None, found.kind, found.gated, found.late, self.family)
                made = graphs.call(graph, LINEAR_ACTIVATED, arguments)
            found.last.replace_all_uses_with(made)
        graph.eliminate_dead_code()


def activations(graph: fx.Graph, layer: Any = LINEAR) -> Iterator[Activated]:
    """Every such layer of a graph; of those by `aten.linear`, the ones that the kernel can read.

    Args:
        layer: the operator that a layer is.
    """
    for node in graph.nodes:
        kind = _kind(node)
        found = None if kind is None else _plain(node, kind, layer) or _gated(node, kind, layer)
        if found is not None and (layer is not LINEAR or _readable(found.linear)):
            yield found


def _kind(node: Node) -> str | None:
    """The activation that a node is."""
    if node.target is aten.gelu.default:
        return "gelu" if node.kwargs.get("approximate", "none") == "none" else "gelu_tanh"
    return {aten.silu.default: "silu", aten.relu.default: "relu"}.get(node.target)


def _plain(node: Node, kind: str, layer: Any) -> Activated | None:
    linear = node.args[0]
    return Activated(linear, node, kind, False, False) if _alone(linear, layer) else None


def _gated(node: Node, kind: str, layer: Any) -> Activated | None:
    """`act(y[:, :n]) * y[:, n:]` or the other way round, `y` being read nowhere else."""
    if len(node.users) != 1:
        return None
    (product,) = node.users
    if product.target is not MUL or len(product.all_input_nodes) != 2:
        return None
    other = product.args[1] if product.args[0] is node else product.args[0]
    mine, gate = _half(node.args[0], layer), _half(other, layer)
    if mine is None or gate is None or mine[0] is not gate[0] or {mine[1], gate[1]} != {0, 1}:
        return None
    return Activated(mine[0], product, kind, True, mine[1] == 1)


def _half(node: Any, layer: Any) -> tuple[fx.Node, int] | None:
    """The layer whose columns a node takes one half of, the first (0) or the second (1); each half is read once."""
    if not _alone(node, SLICE) and not _alone(node, operator.getitem):
        return None
    if node.target is SLICE:
        return _sliced(node, layer)
    if len(node.args[0].users) != 2:
        return None
    parts = node.args[0]
    linear = parts.args[0]
    if parts.target not in (SPLIT, CHUNK) or not _alone(linear, layer) or not _last_dimension(parts, 2, linear):
        return None
    width = linear.meta["val"].shape[-1]
    halved = parts.args[1] == (2 if parts.target is CHUNK else width // 2) and width % 2 == 0
    return (linear, node.args[1]) if halved else None


def _sliced(node: Node, layer: Any) -> tuple[fx.Node, int] | None:
    linear = node.args[0]
    if linear.target is not layer or len(linear.users) != 2 or not _last_dimension(node, 1, linear):
        return None
    width = linear.meta["val"].shape[-1]
    begin, end = node.args[2], min(node.args[3], width)
    halves = {(0, width // 2): 0, (width // 2, width): 1}
    place = halves.get((begin, end)) if width % 2 == 0 and len(node.args) == 4 else None
    return None if place is None else (linear, place)


def _last_dimension(node: Node, place: int, of: Node) -> bool:
    """Whether the argument that names a dimension names the last."""
    given = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    return given in (-1, of.meta["val"].dim() - 1)


def _alone(node: Node, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target and len(node.users) == 1


def _readable(linear: fx.Node) -> bool:
    """Whether the copy engine can fetch the layer's operands: half precision, rows that begin at multiples."""
    x, weight = (arg.meta["val"] for arg in linear.args[:2])  # type: ignore[union-attr]
    widths = (weight.shape[0] // 2, weight.shape[1])
    aligned = all(width * weight.dtype.itemsize % ALIGNED == 0 for width in widths)
    return x.dtype in HALVES and weight.dtype is x.dtype and weight.is_contiguous() and aligned
