"""The operators of the IR (library namespace `headrace`): what each means, in plain torch.

Each has a CPU reference implementation, which is its definition, and a fake one for tracing. They survive
`run_decompositions`, save and load, so a graph's semantics lie in their arguments alone.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from headrace.ir import MaskKind, PoolKind, Window

MASK_SCHEMA = (
    "(Tensor? padding, SymInt batch, SymInt q_len, SymInt kv_len, SymInt q_offset, SymInt kv_offset, "
    "str kind, int[] window, Device device) -> Tensor"
)
ATTENTION_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks, "
    "float scale, str kind, int[] window, float softcap) -> Tensor"
)
POOL_SCHEMA = "(Tensor hidden, Tensor padding, str kind) -> Tensor"


def visible(q: Tensor, k: Tensor, kind: str, window: Window) -> Tensor | None:
    """Which key positions each query position sees: bool, of the broadcast shape of `q` and `k`; None for all."""
    left, right = window
    if kind == MaskKind.CHUNKED:
        return (k <= q) & (k // (left + 1) == q // (left + 1))
    bounds = [k <= q] if kind == MaskKind.CAUSAL else []
    bounds += [k >= q - left] if left >= 0 else []
    bounds += [k <= q + right] if right > 0 or (right == 0 and kind != MaskKind.CAUSAL) else []
    return functools.reduce(torch.logical_and, bounds) if bounds else None


def materialise_mask(
    padding: Tensor | None,
    batch: int,
    q_len: int,
    kv_len: int,
    q_offset: int,
    kv_offset: int,
    kind: str,
    window: Window,
    device: torch.device,
) -> Tensor:
    """The mask as a tensor: bool [batch, 1, q_len, kv_len], true where a query sees a key.

    Args:
        padding: [batch, >= kv_offset + kv_len], nonzero at real tokens; None where every token is real.
    """
    q = torch.arange(q_len, device=device)[:, None] + q_offset
    k = torch.arange(kv_len, device=device)[None, :] + kv_offset
    if kind == MaskKind.CHUNKED and padding is not None:
        # Blocks are counted from a sequence's first real token, wherever its padding lies.
        first = (padding != 0).int().argmax(1)[:, None, None, None]
        q, k = q - first, k - first
    seen = visible(q, k, kind, window)
    real = None if padding is None else (padding != 0)[:, None, None, kv_offset : kv_offset + kv_len]
    if seen is None:
        # Without a relation of positions every query sees alike: one row serves all.
        seen = torch.ones((1, 1, 1, kv_len), dtype=torch.bool, device=device) if real is None else real
    elif real is not None:
        seen = seen & real
    return seen.expand(batch, 1, q_len, kv_len)


@torch.library.custom_op("headrace::mask", mutates_args=(), schema=MASK_SCHEMA)
def mask(
    padding: Tensor | None,
    batch: int,
    q_len: int,
    kv_len: int,
    q_offset: int,
    kv_offset: int,
    kind: str,
    window: list[int],
    device: torch.device,
) -> Tensor:
    """One symbolic mask, shared by the attentions that use it. See `materialise_mask` for its meaning."""
    shape = (batch, q_len, kv_len, q_offset, kv_offset)
    return materialise_mask(padding, *shape, kind, Window(*window), device).clone()


@mask.register_fake
def _(
    padding: Tensor | None,
    batch: int,
    q_len: int,
    kv_len: int,
    q_offset: int,
    kv_offset: int,
    kind: str,
    window: list[int],
    device: torch.device,
) -> Tensor:
    return torch.empty((batch, 1, q_len, kv_len), dtype=torch.bool, device=device)


def attention_scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, softcap: float) -> Tensor:
    """Scores before masking, [B, Hq, L, S]; keys are repeated for grouped queries, the cap follows the bias."""
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    return softcap * torch.tanh(scores / softcap) if softcap > 0 else scores


def attend(scores: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Softmax in float32 at least and the weighted sum, [B, L, Hq, Dv]. A query that sees no key gets zeros.

    Sinks are one logit a head that takes weight and gives nothing (GPT-OSS, arXiv 2508.10925).
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        sink = sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sink], -1)
    weights = torch.softmax(scores, -1)
    if mask is not None and sinks is None:
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)
    weights = weights[..., : v.shape[2]].to(v.dtype)
    return (weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)).transpose(1, 2).contiguous()


@torch.library.custom_op("headrace::attention", mutates_args=(), schema=ATTENTION_SCHEMA)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
) -> Tensor:
    """One attention of any type.

    Args:
        q: [B, Hq, L, D], after position encoding.
        k: [B, Hkv, S, D], not repeated for grouped queries; `v` likewise, [B, Hkv, S, Dv].
        mask: bool [B, 1, L, S] from a `mask` node, or None where `kind` and `window` say it all.
        bias: added to the scaled scores, broadcast to [B, Hq, L, S].
        sinks: [Hq] logits.
        kind: a `MaskKind`; says again what the mask node says, so that the verifier can compare the two.
        window: `(left, right)`, inclusive, -1 without bound.
        softcap: `c` of `c * tanh(score / c)`, 0 for none.

    Returns:
        [B, L, Hq, Dv] in `v`'s dtype.
    """
    if mask is None:
        q_len, kv_len = q.shape[2], k.shape[2]
        mask = materialise_mask(None, q.shape[0], q_len, kv_len, kv_len - q_len, 0, kind, Window(*window), q.device)
    return attend(attention_scores(q, k, bias, scale, softcap), v, mask, sinks)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))


def pool_rows(hidden: Tensor, padding: Tensor, kind: str) -> Tensor:
    """Reduce [B, S, H] to [B, H] over the real rows, on whichever side the padding lies.

    The formulas are sentence-transformers' (`Pooling`): weighted mean weighs a row by its 1-based rank among the
    real rows; mean_sqrt divides the sum by the square root of their count.
    """
    real = (padding != 0).to(torch.int64)
    if kind == PoolKind.CLS:
        return _row(hidden, real.argmax(1))
    if kind == PoolKind.LAST:
        return _row(hidden, real.shape[1] - 1 - real.flip(1).argmax(1))
    kept = real[:, :, None] != 0
    if kind == PoolKind.MAX:
        return hidden.masked_fill(~kept, -torch.inf).amax(1)
    weights = real.cumsum(1) * real if kind == PoolKind.WEIGHTED_MEAN else real
    # Padding rows may hold anything, a NaN too: they are dropped before the sum, not multiplied by zero.
    summed = torch.promote_types(hidden.dtype, torch.float32)
    rows = torch.where(kept, hidden, 0.0).to(summed) * weights[:, :, None].to(summed)
    count = weights.sum(1, keepdim=True).clamp(min=1).to(summed)
    divisor = count.sqrt() if kind == PoolKind.MEAN_SQRT_LEN else count
    return (rows.sum(1) / divisor).to(hidden.dtype)


def _row(hidden: Tensor, index: Tensor) -> Tensor:
    return hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)


@torch.library.custom_op("headrace::pool", mutates_args=(), schema=POOL_SCHEMA)
def pool(hidden: Tensor, padding: Tensor, kind: str) -> Tensor:
    """The choice or reduction of rows that turns [B, S, H] into [B, H]; `padding` is [B, S], nonzero at real tokens."""
    return pool_rows(hidden, padding, kind).clone()


@pool.register_fake
def _(hidden: Tensor, padding: Tensor, kind: str) -> Tensor:
    return hidden.new_empty((hidden.shape[0], hidden.shape[2]))


ATTENTION = torch.ops.headrace.attention.default
MASK = torch.ops.headrace.mask.default
POOL = torch.ops.headrace.pool.default
