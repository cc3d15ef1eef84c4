"""Weights whose every number is a bfloat16 are held as such, and widened to float32 as they are read.

Many checkpoints were written in bfloat16. Their float32 models read twice the bytes that there are, and reading weights
is what bounds a step of few rows. Sums and activations stay float32, so answers do too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from headrace import graphs
from headrace.compat.torch_code import define

LINEAR, EMBEDDING = torch.ops.aten.linear.default, torch.ops.aten.embedding.default
ATEN = torch.ops.aten
# Columns of a block, in pairs of one and the one HALF further: what `linear.h` reads at once.
BLOCK, HALF = 32, 16
# Numbers below which a weight is read in no time.
LEAST = 1 << 14


def pack(weight: Tensor) -> Tensor:
    """A weight [N, K] as bfloat16 in blocks of columns, zeros past the last: [N / 32, K, 16, 2]."""
    padded = functional.pad(weight.bfloat16(), (0, 0, 0, -len(weight) % BLOCK))
    return padded.view(-1, 2, HALF, weight.shape[1]).permute(0, 3, 2, 1).contiguous()


PACKED = graphs.Derived(pack)


def linear_widened(x: Tensor, weight: Tensor, width: int) -> Tensor:
    """`x W^T`; compiled code runs `linear.h` in its place.

    Args:
        x: float32 [rows, K].
        weight: bfloat16 [N / 32, K, 16, 2], as `pack` lays it.
        width: N.

    Returns:
        float32 [rows, N].
    """
    whole = weight.permute(0, 3, 2, 1).reshape(-1, weight.shape[1])[:width]
    return x @ whole.float().t()


def _shape(x: Tensor, weight: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0], width))


LINEAR_WIDENED = define("linear_widened(Tensor x, Tensor weight, int width) -> Tensor", linear_widened, _shape)


def hold_halves(exported: ExportedProgram) -> ExportedProgram:
    """A copy that holds as bfloat16 the weights of linear layers that are nothing else, and tables that they share."""
    held = graphs.weights_of(exported)
    given = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in held]
    chosen = [node.name for node in given if _serves(node) and _is_exact(held[node.name])]
    if not chosen:
        return exported
    packed = {f"{name}_packed": PACKED(held[name].detach()) for name in chosen}
    return graphs.rewrite(graphs.with_weights(exported, packed), lambda graph: _swap(graph, chosen))


def _serves(weight: fx.Node) -> bool:
    """Whether it is read by linear layers, and by nothing else but as a table."""
    users = list(weight.users)
    linear = [user for user in users if user.target is LINEAR and user.args[1] is weight and _is_flat(user)]
    tables = [user for user in users if user.target is EMBEDDING and user.args[0] is weight]
    return bool(linear) and len(linear) + len(tables) == len(users)


def _is_flat(linear: fx.Node) -> bool:
    """Whether all but one of the rows' sizes are known."""
    rows: Any = linear.args[0]
    return sum(not isinstance(size, int) for size in rows.meta["val"].shape) <= 1


def _is_exact(weight: Tensor) -> bool:
    given = weight.detach()
    return given.dtype is torch.float32 and given.numel() >= LEAST and torch.equal(given.bfloat16().float(), given)


def _swap(graph: fx.Graph, names: list[str]) -> None:
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for name in names:
        for user in list(given[name].users):
            with graph.inserting_before(user):
                made = (_linear if user.target is LINEAR else _rows)(graph, user, given[f"{name}_packed"])
            user.replace_all_uses_with(made)
            graph.erase_node(user)


def _linear(graph: fx.Graph, node: fx.Node, weight: fx.Node) -> fx.Node:
    x, _, bias = cast(tuple[Any, ...], (*node.args, None)[:3])
    width, sizes = node.meta["val"].shape[-1], x.meta["val"].shape
    flat = graphs.call(graph, ATEN.reshape.default, (x, [-1, sizes[-1]]), node)
    made = graphs.call(graph, LINEAR_WIDENED, (flat, weight, width), node)
    known = [size if isinstance(size, int) else -1 for size in sizes[:-1]]
    made = graphs.call(graph, ATEN.reshape.default, (made, [*known, width]), node)
    return made if bias is None else graphs.call(graph, ATEN.add.Tensor, (made, bias), node)


def _rows(graph: fx.Graph, node: fx.Node, weight: fx.Node) -> fx.Node:
    """Rows of a table that lies in blocks."""

    def made(target: Any, *args: Any) -> fx.Node:
        return graphs.call(graph, target, args, node)

    ids = node.args[1]
    block, column = made(ATEN.floor_divide.default, ids, BLOCK), made(ATEN.remainder.Scalar, ids, BLOCK)
    pair, half = made(ATEN.remainder.Scalar, column, HALF), made(ATEN.floor_divide.default, column, HALF)
    rows = made(ATEN.index.Tensor, weight, [block, None, pair, half])
    return made(torch.ops.prims.convert_element_type.default, rows, torch.float32)
