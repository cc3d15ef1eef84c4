"""Linear layers in C++ with what follows them, for rows of many tokens: bias, activation, residual and norm.

Weights lie as the products of tiles read them, packed once. Sums are float32 and rounded once, behind the norm, where
the graph by itself rounds after each step. Where the processor has no products of bfloat16, weights and rows are
widened to float32 as they are read. Weights of eight bits are multiplied by rows that are rounded as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from headrace import graphs
from headrace.compat.torch_code import define
from headrace.compat.torch_cpu import tile_dtypes
from headrace.graphs.views import arguments
from headrace.ops import quantized
from headrace.ops.quantized import LINEAR_INT8

ATEN = torch.ops.aten
LINEAR, CLONE, ADD, NORM = ATEN.linear.default, ATEN.clone.default, ATEN.add.Tensor, ATEN.layer_norm.default
# Columns of a block: as torch's products of tiles read it, and as ours do.
COLUMNS, OWN_COLUMNS = 64, 16
# As `dense.h` numbers them.
ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu", "silu")
SCHEMA = (
    "linear_dense(Tensor x, Tensor weight, Tensor? steps, Tensor? bias, Tensor? residual, Tensor? scale, "
    "Tensor? shift, int width, int activation, bool normed, float eps) -> Tensor"
)


class Tiles(NamedTuple):
    """How a weight [N, K] lies.

    Attributes:
        columns: of a block.
        beside: how many neighbours of one column lie side by side.
    """

    columns: int
    beside: int = 1


def tiles_of(dtype: torch.dtype) -> Tiles | None:
    """As this processor multiplies weights of a dtype fastest; None where that is how torch does it."""
    own = {"AVX2": OWN_COLUMNS, "AVX512": 2 * OWN_COLUMNS}.get(torch.backends.cpu.get_cpu_capability())
    if own is None or dtype not in (torch.float32, torch.bfloat16, torch.int8):
        return None
    known = tile_dtypes()
    if dtype is torch.int8:
        return Tiles(COLUMNS if dtype in known else own, 4)
    if dtype in known:
        return Tiles(COLUMNS, 2 if dtype is torch.bfloat16 else 1)
    return Tiles(COLUMNS if torch.float32 in known else own)


def pack_tiles(weight: Tensor, tiles: Tiles) -> Tensor:
    """A weight [N, K] in blocks of columns, zeros past the last.

    Returns:
        [N / columns, K, columns], or of several beside one another [N / columns, K / beside, columns, beside].
    """
    columns, beside = tiles
    padded = functional.pad(weight.detach(), (0, 0, 0, -len(weight) % columns))
    if beside == 1:
        return padded.view(-1, columns, weight.shape[1]).permute(0, 2, 1).contiguous()
    return padded.view(-1, columns, weight.shape[1] // beside, beside).permute(0, 2, 1, 3).contiguous()


def pack_steps(weight: Tensor, scale: Tensor, tiles: Tiles) -> Tensor:
    """What sums of integers take beside the weight [N, K]: float32 [2, columns], each column's scale and its sum."""
    both = torch.stack([scale.detach().float(), weight.detach().sum(1).float()])
    return functional.pad(both, (0, -len(weight) % tiles.columns))


def unpack_tiles(weight: Tensor) -> Tensor:
    """The weight of a packed one, with the rows past its last."""
    if weight.ndim == 4:
        weight = weight.permute(0, 1, 3, 2).flatten(1, 2)
    return weight.transpose(1, 2).flatten(0, 1)


def linear_dense(
    x: Tensor,
    weight: Tensor,
    steps: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    width: int,
    activation: int,
    normed: bool,
    eps: float,
) -> Tensor:
    """A linear layer, an activation, a residual and a layer norm; compiled code runs `dense.h` in its place.

    Args:
        x: float32 or bfloat16 [..., K], as the vectors are.
        weight: as `pack_tiles` makes it, in x's dtype or int8.
        steps: of int8 alone, as `pack_steps` makes them.
        bias: [N].
        residual: [..., N], added behind the activation.
        scale, shift: [N], of the norm, where `normed`.
        width: N.
        activation: the place in `ACTIVATIONS`.

    Returns:
        [..., N] in x's dtype.
    """
    whole, added = unpack_tiles(weight)[:width], None if bias is None else bias.float()
    if steps is None:
        y = functional.linear(x.float(), whole.float(), added)
    else:
        y = quantized.linear_int8(x.float(), whole, steps[0, :width], added)
    y = _activated(y, activation)
    y = y if residual is None else y + residual.float()
    if normed:
        wide, moved = (None if one is None else one.float() for one in (scale, shift))
        y = functional.layer_norm(y, [width], wide, moved, eps)
    return y.to(x.dtype)


def _activated(y: Tensor, activation: int) -> Tensor:
    match ACTIVATIONS[activation]:
        case "gelu":
            return functional.gelu(y)
        case "gelu_tanh":
            return functional.gelu(y, approximate="tanh")
        case "relu":
            return y.relu()
        case "silu":
            return functional.silu(y)
    return y


def _shape(x: Tensor, *given: Any) -> Tensor:
    *_, width, _, _, _ = given
    return x.new_empty((*x.shape[:-1], width))


LINEAR_DENSE = define(SCHEMA, linear_dense, _shape)


@dataclass
class Layer:
    """A linear layer and what follows it, as far as one pass makes it.

    Attributes:
        linear: the node of the layer.
        last: the node whose value the pass makes.
        activation: the place in `ACTIVATIONS`.
        residual: what is added, None for nothing.
        norm: the node of the norm, None for none.
    """

    linear: fx.Node
    last: fx.Node
    activation: int = 0
    residual: fx.Node | None = None
    norm: fx.Node | None = None


def use_dense(exported: ExportedProgram) -> ExportedProgram:
    """A copy whose linear layers are `linear_dense`, where this machine multiplies tiles of their weights' dtype."""
    held = graphs.weights_of(exported)
    given = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in held]
    found = {node.name: tiles_of(held[node.name].dtype) for node in given if _serves(node)}
    chosen = {name: tiles for name, tiles in found.items() if tiles is not None}
    packed = {f"{name}_tiles": pack_tiles(held[name], tiles) for name, tiles in chosen.items()}
    scales = {name: held[arguments(user)["scale"].name] for name, user in _in_integers(given)}
    packed |= {f"{name}_steps": pack_steps(held[name], scales[name], chosen[name]) for name in scales if name in chosen}
    return graphs.rewrite(graphs.with_weights(exported, packed), lambda graph: _swap(graph, list(chosen)))


def _in_integers(weights: list[fx.Node]) -> Iterator[tuple[str, fx.Node]]:
    """The weights that are multiplied as integers, and a layer that does."""
    for weight in weights:
        for user in weight.users:
            if user.target is LINEAR_INT8 and user.args[1] is weight:
                yield weight.name, user


def _serves(weight: fx.Node) -> bool:
    """Whether linear layers alone read it, all in its dtype or all as integers."""
    value = weight.meta["val"]
    kind, beside = (LINEAR_INT8, 4) if value.dtype is torch.int8 else (LINEAR, 2)
    linear = (user.target is kind and user.args[1] is weight for user in weight.users)
    return value.ndim == 2 and value.shape[1] % beside == 0 and bool(weight.users) and all(linear)


def _swap(graph: fx.Graph, names: list[str]) -> None:
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for name in names:
        tiles, steps = given[f"{name}_tiles"], given.get(f"{name}_steps")
        for user in list(given[name].users):
            layer = followed(user)
            with graph.inserting_before(layer.last):
                made = graphs.call(graph, LINEAR_DENSE, _arguments(layer, tiles, steps), layer.last)
            layer.last.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _arguments(layer: Layer, tiles: fx.Node, steps: fx.Node | None) -> tuple[Any, ...]:
    given = arguments(layer.linear)
    x, weight = layer.linear.args[:2]
    norm: dict[str, Any] = {} if layer.norm is None else arguments(layer.norm)
    width = weight.meta["val"].shape[0]  # type: ignore[union-attr]
    besides = (steps, given.get("bias"), layer.residual, norm.get("weight"), norm.get("bias"))
    return (x, tiles, *besides, width, layer.activation, bool(norm), norm.get("eps", 0.0))


def followed(linear: fx.Node) -> Layer:
    """The layer, with all that can be made in its pass."""
    layer = Layer(linear, linear)
    if (user := _reader(layer.last)) is not None and (kind := _kind(user)) is not None:
        layer.last, layer.activation = user, kind
    user = _reader(layer.last)
    if user is not None and user.target is ADD and (other := _added(user, layer.last)) is not None:
        layer.last, layer.residual = user, other
    user = _reader(layer.last)
    if user is not None and user.target is NORM and _norms_rows(user, linear):
        layer.last = layer.norm = user
    return layer


def _reader(node: fx.Node) -> fx.Node | None:
    """The one node that reads a value, copies left out; None where several do."""
    while len(node.users) == 1:
        (user,) = node.users
        if user.target is not CLONE:
            return user
        node = user
    return None


def _kind(node: fx.Node) -> int | None:
    if node.target is ATEN.gelu.default:
        return ACTIVATIONS.index("gelu" if node.kwargs.get("approximate", "none") == "none" else "gelu_tanh")
    named = {ATEN.relu.default: "relu", ATEN.silu.default: "silu"}
    return next((ACTIVATIONS.index(kind) for target, kind in named.items() if node.target is target), None)


def _added(add: fx.Node, value: fx.Node) -> fx.Node | None:
    """What is added to the value, where it has its shape and dtype and is another."""
    if add.kwargs or len(add.all_input_nodes) != 2:
        return None
    one, other = add.all_input_nodes
    added = other if _is_copy(one, value) else one
    mine, its = value.meta["val"], added.meta.get("val")
    if not isinstance(its, Tensor) or its.dtype is not mine.dtype:
        return None
    return added if list(map(str, its.shape)) == list(map(str, mine.shape)) else None


def _is_copy(node: fx.Node, value: fx.Node) -> bool:
    while node is not value and node.target is CLONE:
        node = node.args[0]  # type: ignore[assignment]
    return node is value


def _norms_rows(norm: fx.Node, linear: fx.Node) -> bool:
    """Whether it norms rows of the layer's width, by parameters of the layer's dtype."""
    given, value = arguments(norm), linear.meta["val"]
    own = [given[name].meta["val"].dtype for name in ("weight", "bias") if given.get(name) is not None]
    return len(given["normalized_shape"]) == 1 and all(dtype is value.dtype for dtype in own)
