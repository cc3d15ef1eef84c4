"""Attention over paged caches on a host: what a step's sequences share is one call, the others one each.

It stands in compiled graphs as a call, since how many blocks a sequence has is not known when they are compiled. It
means what `headrace::attention_paged` does.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx
from torch.nn import functional

from headrace.compat.torch_code import define
from headrace.ir import CacheGroup, MaskKind, Window
from headrace.ops import attention, cached


def attend(  # noqa: PLR0913, PLR0917 - what the operator takes
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    blocks: Tensor,
    cu_seqlens: Tensor,
    context: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
) -> Tensor:
    """`attention_paged` by scaled_dot_product_attention, which has no sinks, caps or biases of the distance."""
    given = (kind, window, softcap, bias_kind)
    if sinks is not None or bias is not None or softcap > 0:
        return cached.attention_paged(
            q, k, v, k_cache, v_cache, slots, blocks, cu_seqlens, context, sinks, bias, scale, *given
        )
    if k is not None and v is not None:
        cached.write(k, k_cache, slots)
        cached.write(v, v_cache, slots)
    out = q.new_zeros((q.shape[0], q.shape[1], v_cache.shape[3]))
    group = CacheGroup("", MaskKind(kind), window[0])
    bounds, held, size = cu_seqlens.tolist(), context.tolist(), k_cache.shape[1]
    single = [order for order in range(len(held)) if bounds[order + 1] - bounds[order] == 1]
    if single:
        rows = [bounds[order] for order in single]
        _attend_single(q, out, k_cache, v_cache, blocks, rows, single, held, scale, group)
    for order, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if end - begin > 1:
            total, first = held[order] + end - begin, group.first_key(held[order]) // size
            keys, values = (cached.read(x, blocks[order, first:], total - first * size) for x in (k_cache, v_cache))
            queries, places = (torch.arange(*ends) for ends in ((held[order], total), (first * size, total)))
            seen = attention.visible(queries[:, None], places[None], kind, Window(*window))
            out[begin:end] = _sdpa(q[begin:end].transpose(0, 1)[None], keys, values, seen, scale)[0].transpose(0, 1)
    return out


def _attend_single(
    q: Tensor, out: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, rows: list[int], orders: list[int],
    held: list[int], scale: float, group: CacheGroup,
) -> None:  # fmt: skip
    """Sequences of one new token each: as a batch, filled up to the longest."""
    size = k_cache.shape[1]
    firsts = [group.first_key(held[order]) // size for order in orders]
    most = max(held[order] // size + 1 - first for order, first in zip(orders, firsts, strict=True))
    place = torch.tensor(firsts)[:, None] + torch.arange(most)
    named = blocks[orders].gather(1, place.clamp(max=blocks.shape[1] - 1)).clamp(min=0).long()
    position = (place[:, :, None] * size + torch.arange(size)).flatten(1)
    now = torch.tensor([held[order] for order in orders])[:, None]
    seen = (position <= now) & (position >= torch.tensor([[group.first_key(held[order])] for order in orders]))
    # What lies past a sequence is nobody's and may be no number, which no weight of zero makes one.
    unseen = ~seen[:, :, None, None]
    keys, values = (x[named].flatten(1, 2).masked_fill_(unseen, 0).transpose(1, 2) for x in (k_cache, v_cache))
    out[rows] = _sdpa(q[rows][:, :, None], keys, values, seen[:, None, None], scale)[:, :, 0]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    k, v = k.to(q.dtype), v.to(q.dtype)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


ATTENTION_PAGED_HOST = define(
    cached.PAGED_SCHEMA.replace("attention_paged", "attention_paged_host"), attend, cached.paged_shape
)


def use_host_attention(graph: fx.Graph) -> None:
    """Have a graph call this module's operator where it calls the IR's."""
    for node in graph.nodes:
        if node.target is cached.ATTENTION_PAGED:
            node.target = ATTENTION_PAGED_HOST
