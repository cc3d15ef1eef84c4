"""Attention of the cached form: a step's new tokens in one row, after the keys and values that their sequences left.

A step holds `n` sequences' new tokens, T in one row. `cu_seqlens` int32 [n + 1] says where each begins, `context`
int32 [n] how many of its tokens came before. Keys and values lie in blocks of a pool [N, size, heads, D]: `blocks`
int32 [n, m] names a sequence's in order, -1 where it has none or has given it back; `slots` int64 [T] is where each
new token goes, `block * size + place`, -1 nowhere.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from headrace.compat.torch_code import define
from headrace.ir import CacheGroup, MaskKind, Window
from headrace.ops import attention
from headrace.ops.packed import distance_bias

PAGED_SCHEMA = (
    "attention_paged(Tensor q, Tensor? k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor slots, "
    "Tensor blocks, Tensor cu_seqlens, Tensor context, Tensor? sinks, Tensor? bias, float scale, str kind, "
    "int[] window, float softcap, str bias_kind) -> Tensor"
)
CROSS_SCHEMA = (
    "attention_cross(Tensor q, Tensor k_cache, Tensor v_cache, Tensor blocks, Tensor cu_seqlens, Tensor lengths, "
    "Tensor? sinks, float scale, float softcap) -> Tensor"
)


def attention_paged(  # noqa: PLR0913, PLR0917 - what the operator takes
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
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
    """Causal attention of each sequence's new tokens over its cache, which holds them too from here on.

    Args:
        q: [T, Hq, D], after position encoding.
        k: [T, Hkv, D], v: [T, Hkv, Dv]; None where an earlier layer put them into the same cache.
        v_cache: None where what is kept of a token is its keys, and is its values too.
        bias: of the distance alone, as `bias_kind` (a `BiasKind`) says.

    Returns:
        [T, Hq, Dv] in the values' dtype; rows of no sequence are zeros.
    """
    for x, cache in ((k, k_cache), (v, v_cache)):
        if x is not None and cache is not None:
            write(x, cache, slots)
    size, left, kept = k_cache.shape[1], window[0], k_cache if v_cache is None else v_cache
    out = q.new_zeros((q.shape[0], q.shape[1], kept.shape[3]))
    sequences = zip(itertools.pairwise(cu_seqlens.tolist()), context.tolist(), strict=True)
    for order, ((begin, end), held) in enumerate(sequences):
        if end == begin:
            continue
        total = held + end - begin
        first = CacheGroup("", MaskKind(kind), left).first_key(held) // size
        keys, values = (
            read(cache, blocks[order, first:], total - first * size).to(q.dtype) for cache in (k_cache, kept)
        )
        queries, places = (torch.arange(*bounds, device=q.device) for bounds in ((held, total), (first * size, total)))
        seen = attention.visible(queries[:, None], places[None], kind, Window(*window))
        added = None if bias is None else distance_bias(bias, bias_kind, queries, places)
        scores = attention.attention_scores(q[begin:end].transpose(0, 1)[None], keys, added, scale, softcap)
        out[begin:end] = attention.attend(scores, values, None if seen is None else seen[None, None], sinks)[0]
    return out


def write(x: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Put rows [T, H, D] into a pool [N, size, H, D], each into its slot."""
    real = (slots >= 0).nonzero()[:, 0]
    cache.view(-1, *cache.shape[2:])[slots[real]] = x[real].to(cache.dtype)


def read(cache: Tensor, blocks: Tensor, count: int) -> Tensor:
    """The first rows of some blocks, [1, H, count, D]."""
    named = blocks[: -(-count // cache.shape[1])].long()
    return cache[named].flatten(0, 1)[:count].transpose(0, 1)[None]


def attention_cross(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    blocks: Tensor,
    cu_seqlens: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
) -> Tensor:
    """Attention of a decoder's tokens [T, Hq, D] over an encoder's keys and values, written once; [T, Hq, Dv].

    Args:
        lengths: int32 [n], the encoder's rows of each sequence.
    """
    out = q.new_zeros((q.shape[0], q.shape[1], v_cache.shape[3]))
    sequences = zip(itertools.pairwise(cu_seqlens.tolist()), lengths.tolist(), strict=True)
    for order, ((begin, end), total) in enumerate(sequences):
        if end > begin:
            keys, values = (read(cache, blocks[order], total).to(q.dtype) for cache in (k_cache, v_cache))
            scores = attention.attention_scores(q[begin:end].transpose(0, 1)[None], keys, None, scale, softcap)
            out[begin:end] = attention.attend(scores, values, None, sinks)[0]
    return out


def paged_shape(
    q: Tensor, k: Tensor | None, v: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, *_: object
) -> Tensor:
    """[T, Hq, Dv]."""
    return q.new_empty((q.shape[0], q.shape[1], (k_cache if v_cache is None else v_cache).shape[3]))


def cross_shape(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> Tensor:
    """[T, Hq, Dv]."""
    return q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3]))


ATTENTION_PAGED = define(PAGED_SCHEMA, attention_paged, paged_shape)
ATTENTION_CROSS = define(CROSS_SCHEMA, attention_cross, cross_shape)
