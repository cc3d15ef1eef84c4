"""Know a bias of the distance between query and key alone, so that a kernel computes it and no [T, T] tensor exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor, fx

from headrace import graphs, sample
from headrace.graphs.views import arguments, attention_nodes
from headrace.ir import AttentionType, BiasKind, Layout, MaskKind, Program, Role, Window
from headrace.lowering.types.attention import reads_of
from headrace.ops.attention import visible

# Elements of the largest bias that is evaluated, heads times rows times columns.
LARGEST = 1 << 24
# How far from a function of the distance a bias may be: rounding in its own dtype, of its largest value.
ROUNDING = 4
FEW = 5  # tokens of a text on which a bias of nothing shows itself
SQUARE = frozenset({AttentionType.DECODER, AttentionType.ENCODER_ONLY, AttentionType.ENCODER})


@dataclass(frozen=True)
class TypeBias:
    """Every bias that is a function of the distance between query and key is marked as such."""

    name: str = "bias"

    def __call__(self, program: Program) -> Program:
        """Evaluate each bias that no word of a text changes; see the class."""
        nodes = attention_nodes(program.graph)
        if (
            program.form.layout is not Layout.PADDED
            or program.signature.arrays
            or all(arguments(n)["bias"] is None for n in nodes)
        ):
            return program
        found = read_biases(program)
        specs = tuple(
            replace(spec, bias=one.kind) if one else spec
            for spec, one in zip(program.nodes.attention, found, strict=True)
        )
        return program.with_(attention=specs)


class Distance(NamedTuple):
    """A bias by the distance: its kind, and the slopes or the table of it (see `BiasKind`)."""

    kind: BiasKind
    values: Tensor


def read_biases(program: Program) -> list[Distance | None]:
    """For each attention, what its bias is of the distance; None without a bias, or where it is more than that."""
    reads = reads_of(program.graph)
    # What the same text has whatever its words are.
    places = program.signature.names(Role.PADDING, Role.POSITIONS)
    known: dict[tuple[object, ...], Distance | None] = {}
    found = list[Distance | None]()
    for spec, node in zip(program.nodes.attention, attention_nodes(program.graph), strict=True):
        bias = arguments(node)["bias"]
        plain = spec.type in SQUARE and spec.mask is not MaskKind.CHUNKED
        fixed = plain and bias is not None and reads[bias] <= places
        # A constant along a row changes no weight, unless a sink or a cap measures the scores themselves.
        free = not spec.sinks and not spec.softcap
        key = (bias, spec.mask, spec.window, free)
        if fixed and key not in known:
            known[key] = _read(program, bias, spec.mask, spec.window, free)
        found.append(known[key] if fixed else None)
    return found


def null_biases(program: Program) -> frozenset[int]:
    """The attentions, by their place in call order, whose bias adds nothing: T5's cross attentions are given one."""
    reads, places = reads_of(program.graph), program.signature.names(Role.PADDING, Role.POSITIONS)
    nodes = dict(enumerate(arguments(node)["bias"] for node in attention_nodes(program.graph)))
    fixed = {order: bias for order, bias in nodes.items() if bias is not None and reads[bias] <= places}
    if not fixed:
        return frozenset()
    real = torch.ones((1, FEW), dtype=torch.bool)
    values = graphs.evaluate(program.graph, set(fixed.values()), sample.batch(program, real, real[:, 1:]))
    return frozenset(order for order, bias in fixed.items() if not values[bias].any())


def _read(program: Program, node: fx.Node, mask: MaskKind, window: Window, free: bool) -> Distance | None:
    heads = node.meta["val"].shape[1]
    limit = program.facts.limits.length
    longest = isqrt(LARGEST // int(heads))
    length = min(longest, limit or longest)
    real = torch.ones((1, length), dtype=torch.bool)
    bias = graphs.evaluate(program.graph, [node], sample.batch(program, real))[node]
    whole = limit is not None and limit <= length
    return of_distance(bias[0].expand(-1, length, length), mask, window, free, whole)


def of_distance(bias: Tensor, mask: MaskKind, window: Window, free: bool, whole: bool) -> Distance | None:
    """What the bias [H, L, L] of one text is of the distance, wherever a query sees a key; None where it is more.

    Args:
        free: a constant along a row changes no weight.
        whole: no text is longer.
    """
    table = _table(bias, mask, window, free)
    if table is None:
        return None
    seen = _seen_distances(bias.shape[1], mask, window)
    if (slopes := _slopes(table, seen, _tolerance(bias))) is not None:
        return Distance(BiasKind.ALIBI, slopes)
    return _cut(table, mask.causal, whole)


def _tolerance(bias: Tensor) -> float:
    return ROUNDING * torch.finfo(bias.dtype).eps * float(bias.abs().max()) if bias.is_floating_point() else 0.0


def _table(bias: Tensor, mask: MaskKind, window: Window, free: bool) -> Tensor | None:
    """[H, 2 * L - 1], the bias [H, L, L] by the distance from -(L - 1) on; None where seen values say otherwise."""
    length, tables, tolerance = bias.shape[1], [], _tolerance(bias)
    place = torch.arange(length)
    index = place[None, :] - place[:, None] + length - 1
    seen = visible(place[:, None], place[None, :], mask, window)
    for head in bias.float():
        rows = head - head.diagonal()[:, None] if free else head
        table = torch.cat([rows[-1], rows[0, 1:]])
        off = (rows - table[index]).abs()
        if float((off if seen is None else off[seen]).max()) > tolerance:
            return None
        tables.append(table)
    return torch.stack(tables)


def _seen_distances(length: int, mask: MaskKind, window: Window) -> Tensor:
    """Which distances from -(length - 1) on a query may see: bool [2 * length - 1]."""
    distance = torch.arange(1 - length, length)
    seen = visible(torch.full_like(distance, 2 * length), distance + 2 * length, mask, window)
    return torch.ones_like(distance, dtype=torch.bool) if seen is None else seen


def _slopes(table: Tensor, seen: Tensor, tolerance: float) -> Tensor | None:
    """The slopes [H] of `-slope * |distance|`, where the table is that at every distance that is seen."""
    length = (table.shape[1] + 1) // 2
    distance = torch.arange(1 - length, length).abs()
    slopes = -table[:, 0] / max(length - 1, 1)
    off = (table + slopes[:, None] * distance).abs()[:, seen]
    return slopes if length > 2 and float(off.max()) <= tolerance and bool((slopes != 0).any()) else None


def _cut(table: Tensor, causal: bool, whole: bool) -> Distance | None:
    """The table up to the distance past which it stays the same; None where that is not seen to come.

    Buckets that widen with the distance stay the same for a while too, so it must stay so for as long as the table
    was before.
    """
    length = (table.shape[1] + 1) // 2
    left, right = table[:, :length].flip(1), table[:, length - 1 :]
    # Later keys, which no query of a causal mask sees, say what its own does.
    right = right[:, :1].expand(-1, length) if causal else right
    reach = max(_settled(left), _settled(right))
    if not whole and 2 * reach > length:
        return None
    kept = torch.cat([left[:, 1 : reach + 1].flip(1), right[:, : reach + 1]], 1)
    return Distance(BiasKind.RELATIVE, kept.contiguous())


def _settled(values: Tensor) -> int:
    """The first place from which [H, L] stays as it is at the end."""
    changed = (values != values[:, -1:]).any(0).nonzero()
    return int(changed[-1]) + 1 if len(changed) else 0
