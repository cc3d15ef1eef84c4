"""The operators of a packed program: sequences after one another in one row, told apart by `cu_seqlens`.

Each is defined by running every sequence alone through the operators of `headrace.ops`. A backend may register a
kernel of its own.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from headrace.ir import BiasKind, PoolKind, Window
from headrace.ops import attention

VARLEN_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? sinks, Tensor? bias, "
    "float scale, str kind, int[] window, float softcap, str bias_kind, int length) -> Tensor"
)


def distance_bias(bias: Tensor, kind: str, queries: Tensor, keys: Tensor) -> Tensor:
    """A structured bias as a tensor, [1, Hq, queries, keys], of their positions. See `BiasKind` for the kinds."""
    distance = keys[None, :] - queries[:, None]
    if kind == BiasKind.ALIBI:
        return (-bias[:, None, None] * distance.abs())[None]
    reach = (bias.shape[1] - 1) // 2
    return bias[:, distance.clamp(-reach, reach) + reach][None]


def attend_each(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
) -> Tensor:
    """The definition: every sequence alone, by the operators of `headrace.ops`; rows of no sequence are zeros."""
    out = v.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    for begin, end in itertools.pairwise(cu_seqlens.tolist()):
        alone = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
        place = torch.arange(end - begin, device=q.device)
        added = None if bias is None or end == begin else distance_bias(bias, bias_kind, place, place)
        if end > begin:
            scores = attention.attention_scores(alone[0], alone[1], added, scale, softcap)
            seen = attention.materialise_mask(None, 1, end - begin, end - begin, 0, 0, kind, Window(*window), q.device)
            out[begin:end] = attention.attend(scores, alone[2], seen, sinks)[0]
    return out


@torch.library.custom_op("headrace::attention_varlen", mutates_args=(), schema=VARLEN_SCHEMA)
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
    length: int,
) -> Tensor:
    """Attention of any type within each sequence of a packed batch.

    Args:
        q: [T, Hq, D], after position encoding.
        k: [T, Hkv, D], not repeated for grouped queries; `v` likewise, [T, Hkv, Dv].
        cu_seqlens: int32 [n + 1], where each sequence begins, and the end of the last. Empty sequences are allowed.
        sinks: [Hq] logits that take weight and give nothing.
        bias: of the distance alone, as `bias_kind` (a `BiasKind`) says.
        window: `(left, right)`, inclusive, -1 without bound.
        length: of a typical sequence. It chooses among tunings and changes no result.

    Returns:
        [T, Hq, Dv] in `v`'s dtype.
    """
    return attend_each(q, k, v, cu_seqlens, sinks, bias, scale, kind, window, softcap, bias_kind)


@attention_varlen.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return v.new_empty((q.shape[0], q.shape[1], v.shape[2]))


POOL_VARLEN_SCHEMA = "(Tensor hidden, Tensor cu_seqlens, str kind) -> Tensor"


def pool_packed(hidden: Tensor, cu_seqlens: Tensor, kind: str) -> Tensor:
    """Reduce the rows [1, T, H] of each sequence to one, [n, H], as `ops.pool_rows` does."""
    rows, begin, end = hidden[0], cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    if kind == PoolKind.CLS:
        # An empty sequence at the end of a full row begins past it; its answer is nobody's.
        return rows.index_select(0, begin.clamp(max=rows.shape[0] - 1))
    if kind == PoolKind.LAST:
        return rows.index_select(0, (end - 1).clamp(min=0))
    lengths = end - begin
    if kind == PoolKind.MAX:
        return largest(rows, lengths).to(hidden.dtype)
    return (summed(rows, begin, end, begin, kind) / divisor(kind, lengths)).to(hidden.dtype)


def largest(rows: Tensor, lengths: Tensor) -> Tensor:
    """The largest of each sequence's rows, float32 [n, H]; minus infinity of none."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return torch.segment_reduce(wide, "max", lengths=lengths, unsafe=True)


def summed(rows: Tensor, begin: Tensor, end: Tensor, zero: Tensor, kind: str) -> Tensor:
    """The sum of each sequence's rows, float32 [n, H], each weighed by its rank where the mean is weighted.

    Args:
        begin, end: int64 [n], between which the rows [T, H] of each lie.
        zero: int64 [n], where the first row of each is, or was.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    place = torch.arange(rows.shape[0], device=rows.device)
    owner = torch.searchsorted(end, place, right=True).clamp(max=begin.shape[0] - 1)
    rank = (place - zero[owner] + 1).to(wide)
    weights = rank if kind == PoolKind.WEIGHTED_MEAN else torch.ones_like(rank)
    # Filling past the last sequence belongs to none, and may hold anything.
    real = place < end[-1]
    weighted = torch.where(real[:, None], rows.to(wide) * weights[:, None], 0.0)
    empty = torch.zeros((begin.shape[0], rows.shape[1]), dtype=wide, device=rows.device)
    return empty.index_add(0, owner, weighted)


def divisor(kind: str, lengths: Tensor) -> Tensor:
    """What a sum over so many rows is divided by, float32 [n, 1]."""
    count = lengths.to(torch.float32)
    made = {PoolKind.WEIGHTED_MEAN: count * (count + 1) / 2, PoolKind.MEAN_SQRT_LEN: count.sqrt()}
    return made.get(PoolKind(kind), count).clamp(min=1)[:, None]


@torch.library.custom_op("headrace::pool_varlen", mutates_args=(), schema=POOL_VARLEN_SCHEMA)
def pool_varlen(hidden: Tensor, cu_seqlens: Tensor, kind: str) -> Tensor:
    """`pool` of a packed batch: hidden [1, T, H], cu_seqlens int32 [n + 1], to [n, H]. An empty one's is nobody's."""
    whole = int(cu_seqlens[-1])
    return pool_packed(hidden[:, :whole], cu_seqlens, kind).clone()


@pool_varlen.register_fake
def _(hidden: Tensor, cu_seqlens: Tensor, kind: str) -> Tensor:
    return hidden.new_empty((cu_seqlens.shape[0] - 1, hidden.shape[2]))


ATTENTION_VARLEN = torch.ops.headrace.attention_varlen.default
POOL_VARLEN = torch.ops.headrace.pool_varlen.default
