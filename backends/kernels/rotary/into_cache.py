# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""A step's queries rotated, and its keys rotated into their cache with the values beside them: one launch for three."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.attention.op import padded
from headrace.backends.kernels.float8 import encoded, scale_of
from headrace.backends.kernels.rotary.op import rotate_head, turn_head

ROWS = 16  # tokens a program


@triton.jit
def code_head(
    at, to, scales, live, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS: tl.constexpr, HALF: tl.constexpr,
    PADDED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """`rotate_head` to codes, each row's scale beside them; what is rounded is what would be kept otherwise."""
    one, late = turn_head(at, live, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS, HALF, PADDED, NORM)
    one = one.to(at.dtype.element_ty).to(tl.float32)
    late = late.to(at.dtype.element_ty).to(tl.float32)
    scale = scale_of(tl.maximum(tl.max(tl.abs(one), 1), tl.max(tl.abs(late), 1)))
    d = tl.arange(0, PADDED)
    real = live[:, None] & (d[None, :] < HALF)
    tl.store(scales, scale, mask=live)
    tl.store(to + d[None, :], encoded(one, scale[:, None]), mask=real)
    tl.store(to + HALF + d[None, :], encoded(late, scale[:, None]), mask=real)


@triton.jit
def copy_head(at, to, scales, live, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODED: tl.constexpr):
    """Rows from `at` to `to`, as codes where they are kept so."""
    d = tl.arange(0, PADDED)
    real = live[:, None] & (d[None, :] < WIDTH)
    x = tl.load(at + d[None, :], mask=real, other=0.0)
    if CODED:
        x = x.to(tl.float32)
        scale = scale_of(tl.max(tl.abs(x), 1))
        tl.store(scales, scale, mask=live)
        tl.store(to + d[None, :], encoded(x, scale[:, None]), mask=real)
    else:
        tl.store(to + d[None, :], x.to(to.dtype.element_ty), mask=real)


@triton.jit
def rotate_into_cache(
    Q, K, V, COS, SIN, Q_WEIGHT, K_WEIGHT, OUT, K_CACHE, V_CACHE, K_SCALES, V_SCALES, SLOTS,
    tokens, q_t, q_h, k_t, k_h, v_t, v_h, cos_t, sin_t, Q_EPS: tl.constexpr, K_EPS: tl.constexpr,
    Q_HEADS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, DV: tl.constexpr,
    DV_PAD: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, ROWS: tl.constexpr, CODED: tl.constexpr,
):  # fmt: skip
    """One head of some tokens: first those of the queries, then of the keys, then of the values."""
    head = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = token < tokens
    if head < Q_HEADS:
        at = Q + (token * q_t + head * q_h)[:, None]
        out = OUT + ((token * Q_HEADS + head) * (2 * HALF))[:, None]
        rotate_head(at, out, live, COS, SIN, Q_WEIGHT, token, cos_t, sin_t, Q_EPS, HALF, PADDED, Q_NORM)
    else:
        slot = tl.load(SLOTS + token, mask=live, other=-1)
        live = slot >= 0
        if head < Q_HEADS + HEADS:
            own = head - Q_HEADS
            at = K + (token * k_t + own * k_h)[:, None]
            to = K_CACHE + ((slot * HEADS + own) * (2 * HALF))[:, None]
            if CODED:
                scales = K_SCALES + slot * HEADS + own
                code_head(
                    at, to, scales, live, COS, SIN, K_WEIGHT, token, cos_t, sin_t, K_EPS, HALF, PADDED, K_NORM
                )  # fmt: skip
            else:
                rotate_head(at, to, live, COS, SIN, K_WEIGHT, token, cos_t, sin_t, K_EPS, HALF, PADDED, K_NORM)
        else:
            own = head - Q_HEADS - HEADS
            at = V + (token * v_t + own * v_h)[:, None]
            to = V_CACHE + ((slot * HEADS + own) * DV)[:, None]
            copy_head(at, to, V_SCALES + slot * HEADS + own, live, DV, DV_PAD, CODED)


@torch.library.triton_op("headrace::rotate_into_cache", mutates_args=("k_cache", "v_cache", "k_scale", "v_scale"))
def rotate_into(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    q_eps: float,
    k_weight: Tensor | None,
    k_eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> Tensor:
    """`headrace::rotate` of queries and keys [T, H, D]; the keys go into their cache, and the values [T, H, Dv].

    Args:
        k_scale: of caches in eight bits, as of `headrace::attention_paged`; `v_scale` likewise.

    Returns:
        The queries, [T, Hq, D], dense.
    """
    kernel = torch.library.wrap_triton(rotate_into_cache)
    return written(
        q, k, v, cos, sin, q_weight, q_eps, k_weight, k_eps, k_cache, v_cache, slots, k_scale, v_scale, kernel
    )


def written(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    q_eps: float,
    k_weight: Tensor | None,
    k_eps: float,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    kernel: Any = rotate_into_cache,
) -> Tensor:
    """The launch."""
    tokens, heads, width = q.shape
    dense = (q, k, v, cos[:, None], sin[:, None])
    assert all(one.stride(2) == 1 for one in dense), "a row's elements lie side by side"
    out, half, kept, wide = q.new_empty((tokens, heads, width)), width // 2, k.shape[1], v.shape[2]
    kernel[((tokens + ROWS - 1) // ROWS, heads + 2 * kept)](
        q, k, v, cos, sin, q if q_weight is None else q_weight, k if k_weight is None else k_weight, out, k_cache,
        v_cache, k_cache if k_scale is None else k_scale, v_cache if v_scale is None else v_scale,
        slots, tokens, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        cos.stride(0), sin.stride(0), Q_EPS=q_eps, K_EPS=k_eps, Q_HEADS=heads, HEADS=kept, HALF=half,
        PADDED=triton.next_power_of_2(half), DV=wide, DV_PAD=padded(wide), Q_NORM=q_weight is not None,
        K_NORM=k_weight is not None, ROWS=ROWS, CODED=k_scale is not None,
    )  # fmt: skip
    return out
