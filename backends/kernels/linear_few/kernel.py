# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""A linear layer over few rows, its activation with it: each weight is read once, without matrix units."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from headrace.backends.kernels.linear_activation.kernel import activated


@triton.jit
def store_sums(
    made, gates, BIAS, RESIDUAL, OUT, m, n, shaped, gating, rows, real, r_m, o_m, KIND: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Store what a layer makes of its sums of products [rows, columns], those that gate the others among them."""
    if BIASED:
        made += tl.load(BIAS + shaped, mask=real, other=0.0).to(tl.float32)[None, :]
    if KIND != "":
        made = activated(made, KIND)
    if GATED:
        if BIASED:
            gates += tl.load(BIAS + gating, mask=real, other=0.0).to(tl.float32)[None, :]
        made *= gates
    wanted = (m < rows)[:, None] & real[None, :]
    if ADDED:
        made += tl.load(RESIDUAL + m[:, None] * r_m + n[None, :], mask=wanted, other=0.0).to(tl.float32)
    tl.store(OUT + m[:, None] * o_m + n[None, :], made.to(OUT.dtype.element_ty), mask=wanted)


@triton.jit
def multiply_few(
    X, WEIGHT, BIAS, RESIDUAL, OUT, rows, columns, depth, x_m, r_m, o_m, KIND: tl.constexpr, GATED: tl.constexpr,
    LATE: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of every row a program. KIND is of `linear_activation.op.KINDS`, or empty.

    A row's products are summed lane by lane, and the lanes at the end. EARLY programs begin beside the kernel that
    makes X: they fetch their first weights, which no kernel makes, before they wait for it, and let the next begin.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    real = n < columns
    shaped = n + (columns if LATE else 0)  # the weights of what is activated
    gating = n + (0 if LATE else columns)
    value = tl.zeros((ROWS, BLOCK_N, BLOCK_K), tl.float32)
    gate = value
    shaped_at = WEIGHT + shaped[:, None].to(tl.int64) * depth + k[None, :]
    gating_at = WEIGHT + gating[:, None].to(tl.int64) * depth + k[None, :]
    there = real[:, None] & (k < depth)[None, :]
    w = tl.load(shaped_at, mask=there, other=0.0)
    g = tl.load(gating_at, mask=there & GATED, other=0.0)
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    for begin in range(0, depth, BLOCK_K):
        inside = k < depth - begin
        x_at = X + m[:, None] * x_m + begin + k[None, :]
        x = tl.load(x_at, mask=(m < rows)[:, None] & inside[None, :], other=0.0).to(tl.float32)[:, None, :]
        value += x * w.to(tl.float32)[None, :, :]
        if GATED:
            gate += x * g.to(tl.float32)[None, :, :]
        # The next ones, while these are multiplied.
        there = real[:, None] & (k < depth - begin - BLOCK_K)[None, :]
        w = tl.load(shaped_at + begin + BLOCK_K, mask=there, other=0.0)
        g = tl.load(gating_at + begin + BLOCK_K, mask=there & GATED, other=0.0)
    store_sums(
        tl.sum(value, 2), tl.sum(gate, 2), BIAS, RESIDUAL, OUT, m, n, shaped, gating, rows, real, r_m, o_m, KIND, GATED,
        BIASED, ADDED,
    )  # fmt: skip
