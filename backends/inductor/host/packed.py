"""Linear layers whose weights lie as a step of few rows reads them: in one stream, in no more bytes than they are.

Reading weights is what bounds such a step. Many checkpoints were written in bfloat16, others were rounded to eight or
four bits and multiplied out again: their float32 models read two or four times the bytes that there are. Each weight is
held in the least of those formats that every number of it is exactly. Activations and sums are float32 in any case, so
answers differ by the order of sums alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from headrace import graphs
from headrace.compat.torch_code import define
from headrace.ir import HeldWeights

ATEN = torch.ops.aten
LINEAR, EMBEDDING = ATEN.linear.default, ATEN.embedding.default
FLOAT = torch.ops.prims.convert_element_type.default
# Columns of a block, in two halves; rows that share a scale.
BLOCK, HALF, GROUP = 32, 16, 32
# Numbers below which a weight is read in no time.
LEAST = 1 << 14
# The largest integer of a group, as formats have it that are in use: around zero, and from the least number on.
LEVELS = (*((level, False) for level in (8, 127, 16, 7, 15)), *((level, True) for level in (15, 31, 7, 3)))


class Packed(NamedTuple):
    """A weight [N, K] in blocks of columns, zeros past the last.

    Attributes:
        numbers: float32 or int8 [N / 32, K, 32], or bfloat16 [N / 32, K, 16, 2]: columns in pairs, 16 apart.
        scale: of int8 alone, float32 [N / 32, K / 32, 2, 32]: what integers are multiplied by, and what is added then.
    """

    numbers: Tensor
    scale: Tensor | None


def pack(weight: Tensor) -> Packed:
    """A weight in the least format that holds it exactly."""
    weight = weight.detach()
    if (found := scaled(weight)) is not None:
        integers, scale, offset = found
        return Packed(_blocks(integers), torch.stack([_blocks(scale), _blocks(offset)], 2))
    if torch.equal(weight.bfloat16().float(), weight):
        pairs = _padded(weight.bfloat16()).view(-1, 2, HALF, weight.shape[1])
        return Packed(pairs.permute(0, 3, 2, 1).contiguous(), None)
    return Packed(_blocks(weight), None)


def _padded(weight: Tensor) -> Tensor:
    return functional.pad(weight, (0, 0, 0, -len(weight) % BLOCK))


def _blocks(weight: Tensor) -> Tensor:
    return _padded(weight).view(-1, BLOCK, weight.shape[1]).permute(0, 2, 1).contiguous()


def scaled(weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """A weight [N, K] as integers, a scale and an offset of 32 neighbours each; None where it is no such weight.

    Returns:
        int8 [N, K], and float32 [N, K / 32] twice: a number is its integer by the scale, the offset added, and rounded.
    """
    parts = []
    # Of the first rows it shows at once whether there is something to look for.
    for rows in (weight[:BLOCK], *torch.split(weight[BLOCK:], 1 << 12)):
        whole = torch.cat([rows, rows[:, -1:].expand(-1, -rows.shape[1] % GROUP)], 1)
        groups = whole.view(len(rows), -1, GROUP)
        scale, offset, found = _scales(groups)
        if not found.all():
            return None
        integers = _integers(groups, scale, offset).to(torch.int8)
        parts.append((integers.flatten(1)[:, : rows.shape[1]], scale, offset))
    integers, scales, offsets = map(torch.cat, zip(*parts, strict=True))
    return integers, scales, offsets


def _integers(groups: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return ((groups - offset[..., None]) / torch.where(scale != 0, scale, 1)[..., None]).round()


def _scales(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scale and the offset of each group, and whether they give its every number.

    Formats spread integers so that the largest number is the largest of them: of those around zero, or of those from
    the smallest number on, whose scale is one of 16 bits.
    """
    scale, offset = (groups.new_zeros(groups.shape[:-1]) for _ in range(2))
    found = (groups == 0).all(-1)
    for level, from_least in LEVELS:
        if found.all():
            break
        left = (~found).nonzero(as_tuple=True)
        held = groups[left]
        least = held.amin(-1) if from_least else held.new_zeros(len(held))
        step = (held - least[:, None]).abs().amax(-1) / level
        step = step.half().float() if from_least else step
        made = _integers(held, step, least) * step[:, None]
        if from_least:  # whose sum is rounded once
            made = (made.double() + least[:, None].double()).float()
        fits = (made == held).all(-1)
        each = tuple(place[fits] for place in left)
        scale[each], offset[each], found[each] = step[fits], least[fits], True
    return scale, offset, found


def linear_packed(x: Tensor, weight: Tensor, scale: Tensor | None, width: int) -> Tensor:
    """`x W^T`; compiled code runs `linear.h` in its place.

    Args:
        x: float32 [rows, K].
        weight, scale: as `Packed` has them.
        width: N.

    Returns:
        float32 [rows, N].
    """
    return x @ unpack(weight, scale)[:width].t()


def unpack(weight: Tensor, scale: Tensor | None) -> Tensor:
    """The float32 weight of a packed one, with the rows past its last."""
    if weight.ndim == 4:
        weight = weight.permute(0, 1, 3, 2).flatten(2)
    wide = weight.float()
    if scale is not None:
        step, offset = scale.double().repeat_interleave(GROUP, 1)[:, : wide.shape[1]].unbind(2)
        wide = (wide.double() * step + offset).float()
    return wide.transpose(1, 2).flatten(0, 1)


def _shape(x: Tensor, weight: Tensor, scale: Tensor | None, width: int) -> Tensor:
    return x.new_empty((x.shape[0], width))


LINEAR_PACKED = define(
    "linear_packed(Tensor x, Tensor weight, Tensor? scale, int width) -> Tensor", linear_packed, _shape
)


def pack_linear(exported: ExportedProgram) -> ExportedProgram:
    """A copy whose linear layers of float32 read packed weights, as do lookups of tables that are such weights."""
    held = graphs.weights_of(exported)
    given = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in held]
    chosen = [node.name for node in given if _serves(node) and _is_large(held[node.name])]
    packed: dict[str, Tensor] = {}
    for name in chosen:
        numbers, scale = pack(held[name])
        packed |= {f"{name}_packed": numbers} | ({} if scale is None else {f"{name}_scale": scale})
    return graphs.rewrite(graphs.with_weights(exported, packed), lambda graph: _swap(graph, chosen))


def held_weights(graph: fx.Graph) -> tuple[HeldWeights, ...]:
    """What a graph's linear layers read packed, the format of most bytes first."""
    read = {node.args[1]: node.args[2] for node in graph.nodes if node.target is LINEAR_PACKED}
    found: dict[str, list[int]] = {}
    for weight, scale in read.items():
        parts = [part.meta["val"] for part in (weight, scale) if part is not None]
        name = f"int8 in groups of {GROUP}" if scale is not None else str(parts[0].dtype).removeprefix("torch.")
        found.setdefault(name, []).append(sum(part.numel() * part.itemsize for part in parts))
    made = [HeldWeights(name, len(sizes), sum(sizes)) for name, sizes in found.items()]
    return tuple(sorted(made, key=lambda one: -one.size))


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


def _is_large(weight: Tensor) -> bool:
    return weight.dtype is torch.float32 and weight.numel() >= LEAST


def _swap(graph: fx.Graph, names: list[str]) -> None:
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for name in names:
        packed = given[f"{name}_packed"], given.get(f"{name}_scale")
        for user in list(given[name].users):
            with graph.inserting_before(user):
                made = (_linear if user.target is LINEAR else _rows)(graph, user, *packed)
            user.replace_all_uses_with(made)
            graph.erase_node(user)


def _linear(graph: fx.Graph, node: fx.Node, weight: fx.Node, scale: fx.Node | None) -> fx.Node:
    x, _, bias = cast(tuple[Any, ...], (*node.args, None)[:3])
    width, sizes = node.meta["val"].shape[-1], x.meta["val"].shape
    flat = graphs.call(graph, ATEN.reshape.default, (x, [-1, sizes[-1]]), node)
    made = graphs.call(graph, LINEAR_PACKED, (flat, weight, scale, width), node)
    known = [size if isinstance(size, int) else -1 for size in sizes[:-1]]
    made = graphs.call(graph, ATEN.reshape.default, (made, [*known, width]), node)
    return made if bias is None else graphs.call(graph, ATEN.add.Tensor, (made, bias), node)


def _rows(graph: fx.Graph, node: fx.Node, weight: fx.Node, scale: fx.Node | None) -> fx.Node:
    """Rows of a table that lies in blocks."""

    def made(target: Any, *args: Any) -> fx.Node:
        return graphs.call(graph, target, args, node)

    ids: Any = node.args[1]
    pairs = weight.meta["val"].ndim == 4
    block, column = made(ATEN.floor_divide.default, ids, BLOCK), made(ATEN.remainder.Scalar, ids, BLOCK)
    within = [column]
    if pairs:
        within = [made(ATEN.remainder.Scalar, column, HALF), made(ATEN.floor_divide.default, column, HALF)]
    rows = made(FLOAT, made(ATEN.index.Tensor, weight, [block, None, *within]), torch.float32)
    if scale is None:
        return rows
    both = made(ATEN.index.Tensor, scale, [block, None, None, column])
    both = made(ATEN.repeat_interleave.self_int, both, GROUP, ids.meta["val"].ndim)
    both = made(ATEN.slice.Tensor, both, ids.meta["val"].ndim, 0, weight.meta["val"].shape[1])
    step, offset = (made(ATEN.select.int, both, -1, place) for place in (0, 1))
    return made(ATEN.add.Tensor, made(ATEN.mul.Tensor, rows, step), offset)
