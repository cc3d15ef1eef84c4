# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""Rotary position encoding, and the norm of each head before it where there is one, in one pass over the heads."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.early import wait_if

ROWS = 32  # rows of one token and head a program


@triton.jit
def rotate_head(
    at, to, live, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Rows of `2 * HALF` elements from `at` to `to`, in float32."""
    turned, turned_late = turn_head(at, live, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS, HALF, PADDED, NORM)
    d = tl.arange(0, PADDED)
    real = live[:, None] & (d[None, :] < HALF)
    tl.store(to + d[None, :], turned.to(to.dtype.element_ty), mask=real)
    tl.store(to + HALF + d[None, :], turned_late.to(to.dtype.element_ty), mask=real)


@triton.jit
def turn_head(
    at, live, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """The halves of rows of `2 * HALF` elements, rotated, in float32; zeros past their ends."""
    d = tl.arange(0, PADDED)
    real = live[:, None] & (d[None, :] < HALF)
    first = tl.load(at + d[None, :], mask=real, other=0.0).to(tl.float32)
    second = tl.load(at + HALF + d[None, :], mask=real, other=0.0).to(tl.float32)
    if NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF)
        factor = (1.0 / tl.sqrt(mean + EPS))[:, None]
        first *= factor * tl.load(WEIGHT + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
        second *= factor * tl.load(WEIGHT + HALF + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    cos_at = COS + (token * cos_t)[:, None] + d[None, :]
    sin_at = SIN + (token * sin_t)[:, None] + d[None, :]
    cos, cos_late = tl.load(cos_at, mask=real, other=0.0), tl.load(cos_at + HALF, mask=real, other=0.0)
    sin, sin_late = tl.load(sin_at, mask=real, other=0.0), tl.load(sin_at + HALF, mask=real, other=0.0)
    turned = first * cos.to(tl.float32) - second * sin.to(tl.float32)
    turned_late = second * cos_late.to(tl.float32) + first * sin_late.to(tl.float32)
    return turned, turned_late


@triton.jit
def rotate_rows(
    X, COS, SIN, WEIGHT, OUT, count, x_t, x_h, cos_t, sin_t, EPS: tl.constexpr, HEADS: tl.constexpr,
    HALF: tl.constexpr, PADDED: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some rows, each a head of a token."""
    wait_if(EARLY)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = rows // HEADS
    at = X + (token * x_t + (rows % HEADS) * x_h)[:, None]
    to = OUT + (rows * (2 * HALF))[:, None]
    rotate_head(at, to, rows < count, COS, SIN, WEIGHT, token, cos_t, sin_t, EPS, HALF, PADDED, NORM)


@torch.library.triton_op("headrace::rotate", mutates_args=())
def rotate(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`n * cos + turn(n) * sin` with `turn` of the halves `(a, b)` being `(-b, a)` (RoFormer, arXiv 2104.09864).

    Args:
        x: [T, H, D], the last dimension dense.
        cos: [T, D] in any dtype; `sin` likewise.
        weight: [D] of the RMS norm of each head, `n = weight * x / rms(x)`; None where `n` is `x`.
        eps: of that norm.

    Returns:
        [T, H, D] in `x`'s dtype, dense.
    """
    return rotated(x, cos, sin, weight, eps, torch.library.wrap_triton(rotate_rows))


def rotated(
    x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, eps: float, kernel: Any = rotate_rows
) -> Tensor:
    """The launch."""
    tokens, heads, width = x.shape
    assert x.stride(2) == cos.stride(1) == sin.stride(1) == 1, "a row's elements lie side by side"
    out = x.new_empty((tokens, heads, width))
    count, half = tokens * heads, width // 2
    kernel[((count + ROWS - 1) // ROWS,)](
        x, cos, sin, x if weight is None else weight, out, count, x.stride(0), x.stride(1), cos.stride(0),
        sin.stride(0), EPS=eps, HEADS=heads, HALF=half, PADDED=triton.next_power_of_2(half), NORM=weight is not None,
        ROWS=ROWS, EARLY=False,
    )  # fmt: skip
    return out
