# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""What a short row consists of: looked up rows, a norm, and a linear layer with an activation and a residual."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from headrace.backends.kernels.linear_few.kernel import store_sums

LINE: tl.constexpr = tl.constexpr(64)  # elements of half precision in what is fetched at once
LINES: tl.constexpr = tl.constexpr(16)


@triton.jit
def fetch_rows(WEIGHT, n, real, depth):
    """Have rows of a weight brought near, and wait for nothing."""
    for begin in range(0, depth, LINES * LINE):
        k = begin + tl.arange(0, LINES) * LINE
        at = WEIGHT + tl.where(real, n, 0)[:, None].to(tl.int64) * depth + tl.minimum(k, depth - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def multiply_rows(
    X, WEIGHT, BIAS, RESIDUAL, OUT, rows, columns, depth, x_m, r_m, o_m, KIND: tl.constexpr, GATED: tl.constexpr,
    LATE: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    SPAN: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`act(x W' + b)`, or gated, plus RESIDUAL: BLOCK_N columns of every row a program.

    Its warps share out the sum: PARTS pieces of SPAN elements are multiplied apart in each step, and joined at the end.
    EARLY programs begin beside the kernel that makes X: they fetch their weights, which no kernel makes, before they
    wait for it, and let the next begin.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    k = tl.arange(0, PARTS)[:, None] * SPAN + tl.arange(0, SPAN)[None, :]  # of a step
    real = n < columns
    shaped = n + (columns if LATE else 0)  # the weights of what is activated
    gating = n + (0 if LATE else columns)
    if EARLY:
        cuda.gdc_launch_dependents()
        fetch_rows(WEIGHT, shaped, real, depth)
        if GATED:
            fetch_rows(WEIGHT, gating, real, depth)
        cuda.gdc_wait()
    shaped_at = WEIGHT + shaped[None, None, :].to(tl.int64) * depth + k[:, :, None]
    gating_at = WEIGHT + gating[None, None, :].to(tl.int64) * depth + k[:, :, None]
    x_at = X + m[None, :, None] * x_m + k[:, None, :]
    value = tl.zeros((PARTS, ROWS, BLOCK_N), tl.float32)
    gate = tl.zeros((PARTS, ROWS, BLOCK_N), tl.float32)
    for begin in tl.range(0, depth, PARTS * SPAN, num_stages=STAGES):
        inside = k < depth - begin
        x = tl.load(x_at + begin, mask=(m < rows)[None, :, None] & inside[:, None, :], other=0.0)
        there = real[None, None, :] & inside[:, :, None]
        w = tl.load(shaped_at + begin, mask=there, other=0.0)
        value = tl.dot(x, w, value, input_precision="ieee")
        if GATED:
            g = tl.load(gating_at + begin, mask=there, other=0.0)
            gate = tl.dot(x, g, gate, input_precision="ieee")
    store_sums(
        tl.sum(value, 0), tl.sum(gate, 0), BIAS, RESIDUAL, OUT, m, n, shaped, gating, rows, real, r_m, o_m, KIND, GATED,
        BIASED, ADDED,
    )  # fmt: skip


@triton.jit
def gather_rows(
    IDS_0, IDS_1, IDS_2, TABLE_0, TABLE_1, TABLE_2, OUT, depth, TABLES: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """A row a program: the sum of what each of TABLES has for its id."""
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    real = k < depth
    made = tl.load(TABLE_0 + tl.load(IDS_0 + row).to(tl.int64) * depth + k, mask=real, other=0.0).to(tl.float32)
    if TABLES > 1:
        made += tl.load(TABLE_1 + tl.load(IDS_1 + row).to(tl.int64) * depth + k, mask=real, other=0.0).to(tl.float32)
    if TABLES > 2:
        made += tl.load(TABLE_2 + tl.load(IDS_2 + row).to(tl.int64) * depth + k, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + row * depth + k, made.to(OUT.dtype.element_ty), mask=real)


@triton.jit
def norm_rows(
    X, SCALE, SHIFT, OUT, depth, x_m, o_m, EPS: tl.constexpr, OFFSET: tl.constexpr, CENTERED: tl.constexpr,
    SHIFTED: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A row a program: over its own size, its mean taken away first where it is CENTERED, times OFFSET + SCALE."""
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    real = k < depth
    scale = tl.load(SCALE + k, mask=real, other=0.0).to(tl.float32) + OFFSET
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    x = tl.load(X + row * x_m + k, mask=real, other=0.0).to(tl.float32)
    if CENTERED:
        x = tl.where(real, x - tl.sum(x, 0) / depth, 0.0)
    made = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / depth + EPS)) * scale
    if SHIFTED:
        made += tl.load(SHIFT + k, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + row * o_m + k, made.to(OUT.dtype.element_ty), mask=real)
