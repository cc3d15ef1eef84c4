"""Recurrences whose state is a sum with decaying weights, each defined token by token in plain torch.

They keep to the rules of `headrace.ops.recurrent`: causal, accumulated in float32 at least, a whole sequence a call.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headrace.ops.recurrent import accumulator

LINEAR_SCHEMA = "(Tensor x, Tensor decay) -> Tensor"
WKV_SCHEMA = "(Tensor decay, Tensor first, Tensor k, Tensor v) -> Tensor"
# The log weight of nothing: the difference of two of them is a number, which that of two infinities is not.
LEAST = -1e38
MLSTM_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, float epsilon) -> Tensor"


@torch.library.custom_op("headrace::linear_recurrence", mutates_args=(), schema=LINEAR_SCHEMA)
def linear_recurrence(x: Tensor, decay: Tensor) -> Tensor:
    """`h[t] = decay[t] * h[t-1] + x[t]`, a channel at a time: the recurrence of RG-LRU (arXiv 2402.19427, equation 4).

    Args:
        x, decay: [B, L, D].

    Returns:
        [B, L, D], every `h[t]`, in `x`'s dtype.
    """
    return run_linear(x, decay, x.new_zeros((x.shape[0], x.shape[2]), dtype=accumulator(x)))[0]


def run_linear(x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`linear_recurrence` from a state [B, D] on, and the state after it."""
    kept = accumulator(x)
    seen = []
    for t in range(x.shape[1]):
        state = decay[:, t].to(kept) * state + x[:, t].to(kept)
        seen.append(state)
    return torch.stack(seen, 1).to(x.dtype), state


@linear_recurrence.register_fake
def linear_recurrence_shape(x: Tensor, decay: Tensor) -> Tensor:
    """[B, L, D], in the input's dtype."""
    return x.new_empty(x.shape)


@torch.library.custom_op("headrace::wkv", mutates_args=(), schema=WKV_SCHEMA)
def wkv(decay: Tensor, first: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RWKV-4's weighted mean of values (arXiv 2305.13048, equation 16), a channel at a time.

    Token `s` weighs `exp(k[s] - (t - 1 - s) * exp(decay))` at token `t > s`, and `exp(k[t] + first)` at itself. The
    largest weight so far is kept beside the sums, so that no exponential overflows (its appendix D).

    Args:
        decay, first: [D]. k, v: [B, L, D].

    Returns:
        [B, L, D] in `k`'s dtype.
    """
    return run_wkv(decay, first, k, v, empty_wkv(k.new_zeros((k.shape[0], 3, k.shape[2]), dtype=accumulator(k))))[0]


def empty_wkv(like: Tensor) -> Tensor:
    """The state [B, 3, D] of no token: sums of nothing, and no weight that is the largest."""
    return torch.stack([torch.zeros_like(like[:, 0])] * 2 + [torch.full_like(like[:, 0], LEAST)], 1)


def run_wkv(decay: Tensor, first: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`wkv` from a state [B, 3, D] on (weighted values, weights, the largest log weight), and the state after it."""
    kept = accumulator(k)
    forget, bonus = -decay.to(kept).exp(), first.to(kept)
    sums, largest = state[:, :2].movedim(1, 0), state[:, 2]
    seen = []
    for t in range(k.shape[1]):
        now, parts = k[:, t].to(kept), torch.stack([v[:, t].to(kept), torch.ones_like(largest)])
        _, total = _added(sums, largest, parts, now + bonus)
        seen.append(total[0] / total[1])
        largest, sums = _added(sums, largest + forget, parts, now)
    return torch.stack(seen, 1).to(k.dtype), torch.cat([sums.movedim(0, 1), largest[:, None]], 1)


def _added(sums: Tensor, log_weight: Tensor, parts: Tensor, log_part: Tensor) -> tuple[Tensor, Tensor]:
    """`exp(log_weight) * sums + exp(log_part) * parts`, as the log of a common factor and the rest."""
    largest = torch.maximum(log_weight, log_part)
    return largest, (log_weight - largest).exp() * sums + (log_part - largest).exp() * parts


@wkv.register_fake
def wkv_shape(decay: Tensor, first: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, L, D], in the keys' dtype."""
    return k.new_empty(k.shape)


@torch.library.custom_op("headrace::mlstm", mutates_args=(), schema=MLSTM_SCHEMA)
def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float) -> Tensor:
    """XLSTM's matrix memory with exponential gates (arXiv 2405.04517, equations 19 to 27), a state [H, K, V].

    `C[t] = sigmoid(f[t]) C[t-1] + exp(i[t]) k[t] v[t]^T`, `n` likewise of `k`, and
    `y[t] = C^T q / (max(|n . q|, 1) + epsilon)` with `q / sqrt(K)`; both are kept divided by `exp(m[t])`, the largest
    gate so far (equation 15).

    Args:
        q, k: [B, H, L, K]; v: [B, H, L, V]; the gates before their activation, i and f: [B, H, L].

    Returns:
        [B, H, L, V] in `q`'s dtype.
    """
    state = q.new_zeros((*q.shape[:2], q.shape[3], v.shape[3] + 2), dtype=accumulator(q))
    return run_mlstm(q, k, v, i, f, epsilon, state)[0]


def run_mlstm(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`mlstm` from a state [B, H, K, V + 2] on, and the state after it: `C`, `n` and `m` beside one another."""
    kept = accumulator(q)
    queries, keys, values = q.to(kept) * q.shape[3] ** -0.5, k.to(kept), v.to(kept)
    opened, forgot = i.to(kept), functional.logsigmoid(f.to(kept))
    memory, norm, largest = state[..., :-2], state[..., -2], state[:, :, 0, -1]
    seen = []
    for t in range(q.shape[2]):
        before = forgot[:, :, t] + largest
        largest = torch.maximum(before, opened[:, :, t])
        forget, write = (before - largest).exp()[..., None], (opened[:, :, t] - largest).exp()[..., None]
        written = write * keys[:, :, t]
        memory = forget[..., None] * memory + written[..., None] * values[:, :, t, None]
        norm = forget * norm + written
        read = (queries[:, :, t, None] @ memory)[:, :, 0]
        size = torch.maximum((queries[:, :, t] * norm).sum(-1).abs(), (-largest).exp()) + epsilon
        seen.append(read / size[..., None])
    after = torch.cat([memory, norm[..., None], largest[:, :, None, None].expand_as(norm[..., None])], -1)
    return torch.stack(seen, 2).to(q.dtype), after


@mlstm.register_fake
def mlstm_shape(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float) -> Tensor:
    """[B, H, L, V], in the queries' dtype."""
    return v.new_empty(v.shape, dtype=q.dtype)


LINEAR_RECURRENCE = torch.ops.headrace.linear_recurrence.default
WKV = torch.ops.headrace.wkv.default
MLSTM = torch.ops.headrace.mlstm.default
