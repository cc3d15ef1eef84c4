# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""A linear layer over few rows, its activation with it: each weight is read once, without matrix units."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.backends.kernels.linear_activation.kernel import activated


@triton.jit
def multiply_few(
    X, WEIGHT, BIAS, OUT, rows, columns, depth, x_m, o_m, KIND: tl.constexpr, GATED: tl.constexpr, LATE: tl.constexpr,
    BIASED: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of every row a program. KIND is of `linear_activation.op.KINDS`, or empty.

    A row's products are summed lane by lane, and the lanes at the end.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    real = n < columns
    shaped = n + (columns if LATE else 0)  # the weights of what is activated
    gating = n + (0 if LATE else columns)
    value = tl.zeros((ROWS, BLOCK_N, BLOCK_K), tl.float32)
    gate = value
    for begin in range(0, depth, BLOCK_K):
        at = begin + k
        inside = at < depth
        x = tl.load(X + m[:, None] * x_m + at[None, :], mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        x = x.to(tl.float32)[:, None, :]
        there = real[:, None] & inside[None, :]
        w = tl.load(WEIGHT + shaped[:, None].to(tl.int64) * depth + at[None, :], mask=there, other=0.0)
        value += x * w.to(tl.float32)[None, :, :]
        if GATED:
            w = tl.load(WEIGHT + gating[:, None].to(tl.int64) * depth + at[None, :], mask=there, other=0.0)
            gate += x * w.to(tl.float32)[None, :, :]
    made = tl.sum(value, 2)
    if BIASED:
        made += tl.load(BIAS + shaped, mask=real, other=0.0).to(tl.float32)[None, :]
    if KIND != "":
        made = activated(made, KIND)
    if GATED:
        gates = tl.sum(gate, 2)
        if BIASED:
            gates += tl.load(BIAS + gating, mask=real, other=0.0).to(tl.float32)[None, :]
        made *= gates
    out = OUT + m[:, None] * o_m + n[None, :]
    tl.store(out, made.to(OUT.dtype.element_ty), mask=(m < rows)[:, None] & real[None, :])
