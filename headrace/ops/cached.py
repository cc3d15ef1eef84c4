"""Attention of the cached form: a step's new tokens in one row, after the keys and values that their sequences left.

A step holds `n` sequences' new tokens, T in one row. `cu_seqlens` int32 [n + 1] says where each begins, `context`
int32 [n] how many of its tokens came before. Keys and values lie in blocks of a pool [N, size, heads, D]: `blocks`
int32 [n, m] names a sequence's in order, -1 where it has none or has given it back; `slots` int64 [T] is where each
new token goes, `block * size + place`, -1 nowhere.

Keys and values may be kept in eight bits: their pools are uint8 then, the codes of float8_e4m3fn, beside pools of
scales, float32 [N, size, heads], one for each token and head. A token's numbers depend on no other token so, no text
has to be run beforehand to choose a scale, and none is cut off.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import Tensor

from headrace.compat.torch_code import define
from headrace.ir import CacheGroup, MaskKind, Window
from headrace.ops import attention
from headrace.ops.packed import distance_bias
from headrace.ops.quantized import FLOAT8, round_to_float8

PAGED_SCHEMA = (
    "attention_paged(Tensor q, Tensor? k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor slots, "
    "Tensor blocks, Tensor cu_seqlens, Tensor context, Tensor? sinks, Tensor? bias, float scale, str kind, "
    "int[] window, float softcap, str bias_kind, int v_width=0, Tensor(c!)? k_scale=None, "
    "Tensor(d!)? v_scale=None) -> Tensor"
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
    v_width: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Causal attention of each sequence's new tokens over its cache, which holds them too from here on.

    Args:
        q: [T, Hq, D], after position encoding.
        k: [T, Hkv, D], v: [T, Hkv, Dv]; None where an earlier layer put them into the same cache.
        v_cache: None where what is kept of a token is its keys, whose first numbers are its values too.
        bias: of the distance alone, as `bias_kind` (a `BiasKind`) says.
        v_width: how many of a key's first numbers are its value, where values have no cache of their own; 0 for all.
        k_scale: of keys in eight bits, [N, size, Hkv]; `v_scale` likewise.

    Returns:
        [T, Hq, Dv] in the queries' dtype; rows of no sequence are zeros.
    """
    for x, cache, scales in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if x is not None and cache is not None:
            write(x, cache, slots, scales)
    size, left = k_cache.shape[1], window[0]
    out = paged_rows(q, k_cache, v_cache, v_width).zero_()
    sequences = zip(itertools.pairwise(cu_seqlens.tolist()), context.tolist(), strict=True)
    for order, ((begin, end), held) in enumerate(sequences):
        if end == begin:
            continue
        total = held + end - begin
        first = CacheGroup("", MaskKind(kind), left).first_key(held) // size
        keys = read(k_cache, blocks[order, first:], total - first * size, k_scale).to(q.dtype)
        values = keys[..., : v_width or None]
        if v_cache is not None:
            values = read(v_cache, blocks[order, first:], total - first * size, v_scale).to(q.dtype)
        queries, places = (torch.arange(*bounds, device=q.device) for bounds in ((held, total), (first * size, total)))
        seen = attention.visible(queries[:, None], places[None], kind, Window(*window))
        added = None if bias is None else distance_bias(bias, bias_kind, queries, places)
        scores = attention.attention_scores(q[begin:end].transpose(0, 1)[None], keys, added, scale, softcap)
        out[begin:end] = attention.attend(scores, values, None if seen is None else seen[None, None], sinks)[0]
    return out


def write(x: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None) -> None:
    """Put rows [T, H, D] into a pool [N, size, H, D], each into its slot; in eight bits where there are scales."""
    if scales is not None:
        codes, own = round_to_float8(x)
        write(own[..., 0], scales, slots)
        x = codes.view(torch.uint8)
    real = (slots >= 0).nonzero()[:, 0]
    cache.view(-1, *cache.shape[2:])[slots[real]] = x[real].to(cache.dtype)


def read(cache: Tensor, blocks: Tensor, count: int, scales: Tensor | None = None) -> Tensor:
    """The first rows of some blocks, [1, H, count, D]; in float32 those that are kept in eight bits."""
    named = blocks[: -(-count // cache.shape[1])].long()
    rows = cache[named]
    if scales is not None:
        rows = rows.view(FLOAT8).float() * scales[named][..., None]
    return rows.flatten(0, 1)[:count].transpose(0, 1)[None]


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


def paged_rows(q: Tensor, k_cache: Tensor, v_cache: Tensor | None, v_width: int) -> Tensor:
    """What attention over those caches answers, [T, Hq, Dv] without numbers."""
    width = (v_width or k_cache.shape[3]) if v_cache is None else v_cache.shape[3]
    return q.new_empty((q.shape[0], q.shape[1], width))


def paged_shape(*given: Any, **named: Any) -> Tensor:
    """[T, Hq, Dv], of what `attention_paged` takes."""
    bound = PAGED_SIGNATURE.bind(*given, **named).arguments
    return paged_rows(bound["q"], bound["k_cache"], bound["v_cache"], bound.get("v_width", 0))


def cross_shape(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> Tensor:
    """[T, Hq, Dv]."""
    return q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3]))


PAGED_SIGNATURE = inspect.signature(attention_paged)
ATTENTION_PAGED = define(PAGED_SCHEMA, attention_paged, paged_shape)
ATTENTION_CROSS = define(CROSS_SCHEMA, attention_cross, cross_shape)
