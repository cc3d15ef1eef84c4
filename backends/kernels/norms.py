"""Find RMS norms in a graph, as models spell them. Needs no Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

aten = torch.ops.aten
ADD, MUL, RSQRT, MEAN, POWER = (
    aten.add.Tensor, aten.mul.Tensor, aten.rsqrt.default, aten.mean.dim, aten.pow.Tensor_Scalar,
)  # fmt: skip
CASTS = (aten._to_copy.default, aten.type_as.default)
Node = Any  # an fx.Node: what its arguments are is asked for at every step


class Norm(NamedTuple):
    """`(offset + weight) * z / sqrt(mean(z^2) + eps)` over the last dimension.

    Attributes:
        z: before any cast.
        weight: [D], of the model.
        scale: the node of `offset + weight`, or the weight.
    """

    z: fx.Node
    weight: fx.Node
    eps: float
    offset: float
    scale: fx.Node


def rms_norm(node: Node) -> Norm | None:
    """The norm whose value a node is: times the weight at the end, or times one plus it and then cast (Gemma)."""
    if not isinstance(node, fx.Node):
        return None
    if node.target is MUL and len(node.args) == 2:
        found = _found(_uncast(node.args[1]), node.args[0], 0.0, node.args[0])
        return found or _shifted(node)
    return _shifted(node.args[0]) if node.target in CASTS else None


def _shifted(product: Node) -> Norm | None:
    if not (is_call(product, MUL) and is_call(product.args[1], ADD)):
        return None
    scale = product.args[1]
    weight, offset = scale.args
    return _found(product.args[0], _uncast(weight), offset, scale) if isinstance(offset, float) else None


def _found(scaled: Node, weight: Node, offset: float, scale: Node) -> Norm | None:
    if not (is_call(scaled, MUL) and is_call(scaled.args[1], RSQRT) and is_call(scaled.args[1].args[0], ADD)):
        return None
    wide, (mean, eps) = scaled.args[0], scaled.args[1].args[0].args
    if not (isinstance(eps, float) and is_call(mean, MEAN) and list(mean.args[1]) == [-1]):
        return None
    square = mean.args[0]
    known = isinstance(weight, fx.Node) and weight.op in ("placeholder", "get_attr") and weight.meta["val"].dim() == 1
    over_last = is_call(square, POWER) and square.args == (wide, 2)
    return Norm(_uncast(wide), weight, eps, offset, scale) if known and over_last else None


def is_call(node: Any, target: Any) -> bool:
    """Whether it is a node that calls the target."""
    return isinstance(node, fx.Node) and node.target is target


def _uncast(node: Any) -> Any:
    """What a cast casts."""
    return node.args[0] if isinstance(node, fx.Node) and node.target in CASTS else node
