"""Know keys and values that are linear maps of one row a token, narrower than they are: it alone need be kept.

Multi-head latent attention computes each head's keys and values from a latent that is shared by all, and adds to the
keys a rotary part that is shared too. A query that goes through the transposed map of its keys scores the latent
itself, and what it gathers of latents goes through the map of the values afterwards: the products are the same numbers,
in another order.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs
from headrace.graphs.views import arguments, attention_nodes
from headrace.ir import AttentionType, Program, Role

A = torch.ops.aten
# What moves numbers of a token, and computes none.
MOVES = frozenset({
    operator.getitem, A.view.default, A.reshape.default, A.transpose.int, A.permute.default,
    A.select.int, A.slice.Tensor, A.split_with_sizes.default, A.split.Tensor, A.expand.default, A.cat.default,
    A.unsqueeze.default, A.squeeze.dim, A.clone.default, A.contiguous.default, A.copy.default,
    A.slice_scatter.default, A.new_empty.default, A.alias.default,
})  # fmt: skip
LINEAR = A.linear.default
# How many times narrower than its keys and values a row must be: a query's products with it are wider than with them.
NARROWER = 3


@dataclass(frozen=True)
class Compressed:
    """The row of an attention, and the maps from it.

    Attributes:
        rows: the nodes that it is made of, side by side, those that values are made of first; each with the dimension
            that counts tokens, its first being the batch.
        key_map: [Hq, own, C'], of the first `own` numbers of a head's keys, or of those past what is shared; C' are
            the first numbers of the row.
        shared: how many numbers of a key are the last of the row, for every head alike.
        shared_first: whether they are the first of the key.
        value_map: [Hq, W, Dv], of the first W numbers of the row.
        width: C, of the row.
    """

    rows: tuple[tuple[str, int], ...]
    key_map: Tensor
    shared: int
    shared_first: bool
    value_map: Tensor
    width: int


def read_compressed(program: Program) -> list[Compressed | None]:
    """For each attention, the row that is kept in place of its keys and values; None where there is none."""
    found, signature = list[Compressed | None](), program.signature
    # What one text's tokens are is clear where there is one text: an encoder's is another, and arrays have none.
    alone = signature.has(Role.IDS) and not signature.has(Role.TARGET_IDS)
    for spec, node in zip(program.nodes.attention, attention_nodes(program.graph), strict=True):
        given = arguments(node)
        plain = alone and spec.type is AttentionType.DECODER and given["bias"] is None
        found.append(_read(program, given["k"], given["v"], spec.q_heads // spec.kv_heads) if plain else None)
    return found


def _read(program: Program, k: fx.Node, v: fx.Node, groups: int) -> Compressed | None:
    inner, rows = _sources(program, [k, v])
    axes = [_token_axis(program, node) for node in rows]
    if not inner or None in axes:
        return None
    widths = [_width(node, axis) for node, axis in zip(rows, axes, strict=True)]
    heads = (int(x.meta["val"].shape[1]) * int(x.meta["val"].shape[3]) for x in (k, v))
    if NARROWER * (width := sum(widths)) > sum(heads):
        return None
    order = {node: (axis, size) for node, axis, size in zip(rows, axes, widths, strict=True)}
    keys, values = (x.repeat_interleave(groups, 1) for x in _maps(program, inner, order, k, v))
    used = [bool(part.any()) for part in torch.split(values, widths)]
    first = sorted(range(len(rows)), key=lambda place: not used[place])
    taken = torch.cat([torch.split(torch.arange(width), widths)[place] for place in first])
    of_values = sum(size for size, one in zip(widths, used, strict=True) if one)
    named = tuple((rows[place].name, int(axes[place] or 0)) for place in first)
    return _told(named, keys[taken], values[taken][:of_values], width)


def _told(rows: tuple[tuple[str, int], ...], keys: Tensor, values: Tensor, width: int) -> Compressed:
    """The maps [C, Hq, D] and [W, Hq, Dv], what is shared told from what is multiplied."""
    shared = 0
    for count in range(1, keys.shape[2]):
        if not any(_is_shared(keys, width - count, part) for part in (keys[..., :count], keys[..., -count:])):
            continue
        shared = count
    first = bool(shared) and _is_shared(keys, width - shared, keys[..., :shared])
    own = keys[: width - shared, :, shared:] if first else keys[: width - shared, :, : keys.shape[2] - shared]
    return Compressed(
        rows, own.permute(1, 2, 0).contiguous(), shared, first, values.transpose(0, 1).contiguous(), width
    )


def _is_shared(keys: Tensor, begin: int, part: Tensor) -> bool:
    """Whether a part of every head's key is the end of the row, which no other part of it reads."""
    same = torch.eye(part.shape[2], dtype=keys.dtype)[:, None].expand(-1, keys.shape[1], -1)
    read = int(part[:begin].count_nonzero()) + int(keys[begin:].count_nonzero())
    return torch.equal(part[begin:], same) and read == int(same.count_nonzero())


def _sources(program: Program, ends: list[fx.Node]) -> tuple[set[fx.Node], list[fx.Node]]:
    """The nodes that only move numbers or multiply them by a weight, and what those read of the text, in order."""
    weights = graphs.weights_of(program.graph)
    inner, sources, todo = set[fx.Node](), set[fx.Node](), list(ends)
    while todo:
        node = todo.pop()
        if node in inner or node in sources or node.name in weights or node.target is graphs.SIZE:
            continue
        if node.target in MOVES or _widens(node, weights):
            inner.add(node)
            todo += node.all_input_nodes
        else:
            sources.add(node)
    return inner, [node for node in program.graph.graph.nodes if node in sources]


def _widens(node: fx.Node, weights: Any) -> bool:
    """Whether it is a linear layer of the model's own whose rows are wider than what they are made of."""
    if node.target is not LINEAR or (len(node.args) > 2 and node.args[2] is not None):
        return False
    weight: Any = node.args[1]
    return weight.name in weights and weight.meta["val"].shape[0] > weight.meta["val"].shape[1]


def _token_axis(program: Program, node: fx.Node) -> int | None:
    """Which dimension of a value counts a text's tokens, where the first is the batch; None where it is otherwise."""
    value = node.meta.get("val")
    ids = program.graph.graph.find_nodes(op="placeholder")
    (name,) = program.signature.names(Role.IDS)
    batch, tokens = next(one for one in ids if one.name == name).meta["val"].shape
    if not isinstance(value, Tensor) or value.shape[0] != batch:
        return None
    free = [place for place, size in enumerate(value.shape) if place and not isinstance(size, int)]
    return free[0] if len(free) == 1 and value.shape[free[0]] == tokens else None


def _width(node: fx.Node, axis: int | None) -> int:
    sizes = node.meta["val"].shape
    return int(torch.Size(size for place, size in enumerate(sizes) if place not in (0, axis)).numel())


@torch.no_grad()
def _maps(
    program: Program, inner: set[fx.Node], sources: dict[fx.Node, tuple[Any, int]], k: fx.Node, v: fx.Node
) -> tuple[Tensor, Tensor]:
    """What each number of a row becomes of keys and values, [C, Hkv, D] and [C, Hkv, Dv]: token i has the i-th."""
    total = sum(size for _, size in sources.values())
    bound = graphs.bindings(program.graph, _empty_inputs(program, total))
    given = dict(zip(program.graph.graph.find_nodes(op="placeholder"), bound, strict=True))
    interpreter, begin = fx.Interpreter(program.graph.graph_module), 0
    for node in program.graph.graph.nodes:
        if node in sources:
            axis, size = sources[node]
            value = node.meta["val"]
            rest = [int(one) for place, one in enumerate(value.shape) if place not in (0, axis)]
            basis = torch.eye(total, dtype=value.dtype)[:, begin : begin + size].reshape(1, total, *rest)
            interpreter.env[node] = basis.movedim(1, axis)
            begin += size
        elif node in given:
            interpreter.env[node] = given[node]
        elif node in inner or (node.target is graphs.SIZE and node.args[0] in given):
            interpreter.env[node] = interpreter.run_node(node)
    return interpreter.env[k][0].transpose(0, 1), interpreter.env[v][0].transpose(0, 1)


def _empty_inputs(program: Program, tokens: int) -> dict[str, Tensor]:
    """Of the sizes of one text; nothing reads their numbers."""
    return {
        one.name: torch.zeros([1, tokens, *[1] * len(one.axes[2:])], dtype=getattr(torch, one.dtype))
        for one in program.signature.inputs
    }
