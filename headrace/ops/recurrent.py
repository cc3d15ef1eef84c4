"""The operators that carry state along a sequence without attention, each defined token by token in plain torch.

All are causal: a token's output depends on it and on the tokens before it. State is accumulated in float32 (float64
where the operands are). An operator runs whole sequences from an empty state; the function of its definition takes a
state and returns the one that it leaves, [B, ...], from which `headrace.ops.stateful` makes the form that goes on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CONVOLUTION_SCHEMA = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
SELECTIVE_SCHEMA = (
    "(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z, Tensor? dt_bias, bool softplus) "
    "-> Tensor"
)
CHUNK_SCHEMA = (
    "(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? dt_bias, bool softplus, "
    "float? dt_min, float? dt_max) -> Tensor"
)
DELTA_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, bool normalize) -> Tensor"
SHIFT_SCHEMA = "(Tensor x) -> Tensor"
# What the delta rule adds to a squared norm before its root, as flash-linear-attention does.
NORM_EPSILON = 1e-6


def accumulator(*operands: Tensor) -> torch.dtype:
    """The dtype that state is kept in: float32, or float64 where an operand is."""
    return torch.float64 if any(x.dtype == torch.float64 for x in operands) else torch.float32


def step_sizes(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """The time steps of a state-space model: `softplus(dt + bias)`, in `dt`'s dtype. `bias` must broadcast."""
    biased = dt if bias is None else dt + bias.to(dt.dtype)
    return functional.softplus(biased) if softplus else biased


def bounded(x: Tensor, least: float | None, most: float | None) -> Tensor:
    """`x` between two bounds, either of which may be None."""
    return x if least is None and most is None else x.clamp(least, most)


@torch.library.custom_op("headrace::causal_conv1d", mutates_args=(), schema=CONVOLUTION_SCHEMA)
def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`y[t] = bias + sum_k weight[k] * x[t - K + 1 + k]`, a channel at a time; before the sequence lie zeros.

    Args:
        x: [B, C, L]; weight: [C, K]; bias: [C].

    Returns:
        [B, C, L] in `weight`'s dtype.
    """
    return run_convolution(x, weight, bias, x.new_zeros((x.shape[0], weight.shape[0], weight.shape[1] - 1)))[0]


def run_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """`causal_conv1d` after the inputs [B, C, K - 1] before the sequence, and the last inputs with it."""
    padded = torch.cat([state.to(weight.dtype), x.to(weight.dtype)], 2)
    y = functional.conv1d(padded, weight[:, None], bias, groups=weight.shape[0]).contiguous()
    return y, padded[:, :, padded.shape[2] - state.shape[2] :]


@causal_conv1d.register_fake
def convolution_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[B, C, L], in the weight's dtype."""
    return weight.new_empty(x.shape)


@torch.library.custom_op("headrace::selective_scan", mutates_args=(), schema=SELECTIVE_SCHEMA)
def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
) -> Tensor:
    """Mamba's state-space recurrence (arXiv 2312.00752, algorithm 2), with a state [D, N] a sequence.

    `h[t] = exp(dt[t] * a) * h[t-1] + dt[t] * b[t] * x[t]`, `y[t] = (c[t] . h[t] + d * x[t]) * silu(z[t])`.

    Args:
        x: [B, D, L]; `dt` and the gate `z` likewise. b, c: [B, N, L]. a: [D, N]. d, dt_bias: [D].
        softplus: whether `dt` is raw, and `softplus(dt + dt_bias)` is the step.

    Returns:
        [B, D, L] in float32.
    """
    state = x.new_zeros((x.shape[0], *a.shape), dtype=accumulator(x))
    return run_selective(x, dt, a, b, c, d, z, dt_bias, softplus, state)[0]


def run_selective(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """`selective_scan` from a state [B, D, N] on, and the state after it."""
    kept = accumulator(x)
    step = step_sizes(dt, None if dt_bias is None else dt_bias[:, None], softplus).to(kept)
    rows, inputs, outputs = x.to(kept), b.to(kept), c.to(kept)
    seen = []
    for t in range(x.shape[2]):
        now = step[:, :, t, None]
        state = torch.exp(now * a) * state + now * inputs[:, None, :, t] * rows[:, :, t, None]
        seen.append((state * outputs[:, None, :, t]).sum(-1))
    y = torch.stack(seen, -1)
    y = y if d is None else y + rows * d[:, None]
    return (y if z is None else y * functional.silu(z.to(kept))).contiguous(), state


@selective_scan.register_fake
def selective_scan_shape(x: Tensor, *_: object) -> Tensor:
    """[B, D, L], in the dtype of the state."""
    return x.new_empty(x.shape, dtype=accumulator(x))


@torch.library.custom_op("headrace::chunk_scan", mutates_args=(), schema=CHUNK_SCHEMA)
def chunk_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    dt_min: float | None,
    dt_max: float | None,
) -> Tensor:
    """Mamba-2's state-space duality (arXiv 2405.21060, section 6), with a state [H, P, N] a sequence.

    `h[t] = exp(dt[t] * a) * h[t-1] + dt[t] * x[t] b[t]^T`, `y[t] = h[t] c[t] + d * x[t]`. Kernels compute it in
    chunks, which its name remembers; the chunk's length changes nothing but rounding.

    Args:
        x: [B, L, H, P]. dt: [B, L, H]. a: [H], negative. b, c: [B, L, G, N], each group for H / G heads.
        d: [H] or [H, P]. dt_bias: [H].
        softplus: whether `dt` is raw, and `clamp(softplus(dt + dt_bias), dt_min, dt_max)` is the step; None is no
            bound.

    Returns:
        [B, L, H, P] in float32.
    """
    state = x.new_zeros((*x.shape[:1], *x.shape[2:], b.shape[3]), dtype=accumulator(x))
    return run_chunk(x, dt, a, b, c, d, dt_bias, softplus, dt_min, dt_max, state)[0]


def run_chunk(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    dt_min: float | None,
    dt_max: float | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """`chunk_scan` from a state [B, H, P, N] on, and the state after it."""
    kept = accumulator(x)
    heads = x.shape[2]
    step = bounded(step_sizes(dt, dt_bias, softplus), dt_min, dt_max).to(kept)
    rows = x.to(kept)
    inputs, outputs = (part.to(kept).repeat_interleave(heads // b.shape[2], 2) for part in (b, c))
    decay = torch.exp(step * a.to(kept))
    seen = []
    for t in range(x.shape[1]):
        added = (step[:, t, :, None] * rows[:, t])[..., None] * inputs[:, t, :, None, :]
        state = decay[:, t, :, None, None] * state + added
        seen.append((state * outputs[:, t, :, None, :]).sum(-1))
    y = torch.stack(seen, 1)
    return (y if d is None else y + rows * (d if d.dim() == 2 else d[:, None])).contiguous(), state


@chunk_scan.register_fake
def chunk_scan_shape(x: Tensor, *_: object) -> Tensor:
    """[B, L, H, P], in the dtype of the state."""
    return x.new_empty(x.shape, dtype=accumulator(x))


def normalised(x: Tensor) -> Tensor:
    """Rows of unit length, as flash-linear-attention makes them."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPSILON)


def delta_operands(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The delta rule's operands as its recurrence reads them: wide, one key head a value head, queries scaled.

    Returns:
        q, k [B, L, H, K]; v [B, L, H, V]; the log decay [B, L, H, K or 1]; beta [B, L, H, 1].
    """
    kept = accumulator(q)
    q, k = (x.to(kept).repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    q, k = (normalised(q), normalised(k)) if normalize else (q, k)
    log_decay = g if g.dim() == 4 else g[..., None]
    return q * q.shape[-1] ** -0.5, k, v.to(kept), log_decay.to(kept), beta[..., None].to(kept)


@torch.library.custom_op("headrace::gated_delta_rule", mutates_args=(), schema=DELTA_SCHEMA)
def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalize: bool) -> Tensor:
    """Gated DeltaNet's recurrence (arXiv 2412.06464, equation 10), with a state [H, K, V] a sequence.

    `S = diag(exp(g[t])) S[t-1]`, `S[t] = S + k[t] (beta[t] (v[t] - S^T k[t]))^T`, `y[t] = S[t]^T q[t] / sqrt(K)`.
    With a decay for every key channel it is Kimi Delta Attention (arXiv 2510.26692, equation 1).

    Args:
        q, k: [B, L, Hk, K], each for H / Hk value heads. v: [B, L, H, V].
        g: log decay, [B, L, H], or [B, L, H, K] for one a key channel. beta: [B, L, H].
        normalize: whether queries and keys are brought to unit length first.

    Returns:
        [B, L, H, V] in `q`'s dtype.
    """
    state = v.new_zeros((v.shape[0], v.shape[2], q.shape[3], v.shape[3]), dtype=accumulator(q))
    return run_delta(q, k, v, g, beta, normalize, state)[0]


def run_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalize: bool, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule` from a state [B, H, K, V] on, and the state after it."""
    queries, keys, values, log_decay, rates = delta_operands(q, k, v, g, beta, normalize)
    seen = []
    for t in range(v.shape[1]):
        state = state * log_decay[:, t, :, :, None].exp()
        known = (state * keys[:, t, :, :, None]).sum(-2)
        state = state + keys[:, t, :, :, None] * (rates[:, t] * (values[:, t] - known))[:, :, None]
        seen.append((state * queries[:, t, :, :, None]).sum(-2))
    return torch.stack(seen, 1).to(q.dtype).contiguous(), state


@gated_delta_rule.register_fake
def gated_delta_rule_shape(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalize: bool) -> Tensor:
    """[B, L, H, V], in the queries' dtype."""
    return v.new_empty(v.shape, dtype=q.dtype)


@torch.library.custom_op("headrace::token_shift", mutates_args=(), schema=SHIFT_SCHEMA)
def token_shift(x: Tensor) -> Tensor:
    """`y[t] = x[t - 1]`, x [B, L, D]; before the sequence lie zeros. What RWKV mixes each token with (2305.13048)."""
    return run_shift(x, x.new_zeros((x.shape[0], x.shape[2])))[0]


def run_shift(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`token_shift` after a token [B, D], and the last token."""
    whole = torch.cat([state[:, None].to(x.dtype), x], 1)
    return whole[:, :-1].contiguous(), whole[:, -1]


@token_shift.register_fake
def token_shift_shape(x: Tensor) -> Tensor:
    """[B, L, D]."""
    return x.new_empty(x.shape)


CAUSAL_CONV1D = torch.ops.headrace.causal_conv1d.default
SELECTIVE_SCAN = torch.ops.headrace.selective_scan.default
CHUNK_SCAN = torch.ops.headrace.chunk_scan.default
GATED_DELTA_RULE = torch.ops.headrace.gated_delta_rule.default
TOKEN_SHIFT = torch.ops.headrace.token_shift.default
