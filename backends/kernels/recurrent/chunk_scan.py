# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0914, PLR0915, PLR0917 - a kernel takes plain arguments
"""Mamba-2's scan over packed sequences in chunks: products within a chunk, the state in registers between chunks."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, sequence_rows, side_by_side, step_size


@triton.jit
def scan_chunks(
    X, DT, A, B, C, D, DT_BIAS, CU_SEQLENS, OUT, count, tokens, x_t, x_h, dt_t, dt_h, b_t, b_g, c_t, c_g, d_h, d_p,
    LEAST: tl.constexpr, MOST: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    STATE: tl.constexpr, SKIPS: tl.constexpr, BIASED: tl.constexpr, SOFTPLUS: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """One sequence, one head and some columns of it. Products are of the operands' dtype and add up in float32.

    Log decays are summed in float64, since their differences must not lose small steps that follow large ones.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    states = tl.arange(0, STATES)
    within = columns < WIDTH
    kept = states < STATE
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    out_t = HEADS * WIDTH
    clear_rows(OUT, begin, tokens, sequence, count, out_t, head * WIDTH + columns, within, CHUNK)
    a = tl.load(A + head).to(tl.float32)
    bias = tl.load(DT_BIAS + head).to(tl.float32) if BIASED else 0.0
    place = tl.arange(0, CHUNK)
    earlier = place[:, None] >= place[None, :]
    kind: tl.constexpr = X.dtype.element_ty
    state = tl.zeros([STATES, COLUMNS], tl.float32)
    for start in range(begin, end, CHUNK):
        rows = start + place
        real = rows < end
        row = rows.to(tl.int64)
        step = step_size(tl.load(DT + row * dt_t + head * dt_h, mask=real, other=0.0), bias, SOFTPLUS)
        if LEAST is not None:
            step = tl.maximum(step, LEAST)
        if MOST is not None:
            step = tl.minimum(step, MOST)
        step = tl.where(real, step, 0.0)
        since = tl.cumsum((step * a).to(tl.float64), 0)
        total = tl.sum((step * a).to(tl.float64), 0)
        x = tl.load(X + row[:, None] * x_t + head * x_h + columns[None, :], mask=real[:, None] & within[None, :], other=0.0)
        b = tl.load(
            B + row[:, None] * b_t + (head // GROUP) * b_g + states[None, :], mask=real[:, None] & kept[None, :], other=0.0
        )
        c = tl.load(
            C + row[:, None] * c_t + (head // GROUP) * c_g + states[None, :], mask=real[:, None] & kept[None, :], other=0.0
        )
        between = tl.exp(tl.where(earlier, since[:, None] - since[None, :], float("-inf")).to(tl.float32))
        scores = tl.dot(c, tl.trans(b), input_precision="ieee") * between * step[None, :]
        y = tl.dot(c, state.to(kind), input_precision="ieee") * tl.exp(since.to(tl.float32))[:, None]
        y += tl.dot(scores.to(kind), x, input_precision="ieee")
        left = step * tl.exp((total - since).to(tl.float32))
        state *= tl.exp(total.to(tl.float32))
        state += tl.dot(tl.trans(b), (x.to(tl.float32) * left[:, None]).to(kind), input_precision="ieee")
        if SKIPS:
            skip = tl.load(D + head * d_h + columns * d_p, mask=within, other=0.0)
            y += x.to(tl.float32) * skip.to(tl.float32)[None, :]
        at = OUT + row[:, None] * out_t + head * WIDTH + columns[None, :]
        tl.store(at, y, mask=real[:, None] & within[None, :])


@torch.library.triton_op("headrace::chunk_scan_triton", mutates_args=())
def chunk_scan_triton(
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
    cu_seqlens: Tensor,
) -> Tensor:
    """`headrace::chunk_scan_varlen`."""
    kernel = torch.library.wrap_triton(scan_chunks)
    return chunk_scanned(x, dt, a, b, c, d, dt_bias, softplus, dt_min, dt_max, cu_seqlens, kernel)


def chunk_scanned(
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
    cu_seqlens: Tensor,
    kernel: Any = scan_chunks,
) -> Tensor:
    """The launch."""
    _, tokens, heads, width = x.shape
    groups, state = b.shape[2:]
    x, b, c = (side_by_side(rows.to(x.dtype)) for rows in (x, b, c))
    out = x.new_empty((1, tokens, heads, width), dtype=torch.float32)
    states = max(16, triton.next_power_of_2(state))
    chunk, columns, warps = blocks(x.dtype, width, states)
    count = cu_seqlens.shape[0] - 1
    kernel[(count + 1, heads, (width + columns - 1) // columns)](
        x, dt, a, b, c, x if d is None else d, x if dt_bias is None else dt_bias, cu_seqlens, out, count, tokens,
        x.stride(1), x.stride(2), dt.stride(1), dt.stride(2), b.stride(1), b.stride(2), c.stride(1), c.stride(2),
        0 if d is None else d.stride(0), d.stride(1) if d is not None and d.dim() == 2 else 0, LEAST=dt_min,
        MOST=dt_max, HEADS=heads, GROUP=heads // groups, WIDTH=width, STATE=state, SKIPS=d is not None,
        BIASED=dt_bias is not None, SOFTPLUS=softplus, CHUNK=chunk, COLUMNS=columns, STATES=states, num_warps=warps,
    )  # fmt: skip
    return out


def blocks(dtype: torch.dtype, width: int, states: int) -> tuple[int, int, int]:
    """Tokens of a chunk, columns of a program and its warps: what keeps state, scores and operands in registers."""
    columns = max(16, triton.next_power_of_2(width))
    if dtype.itemsize > 2:  # products without matrix units
        return 16, min(columns, 16 if states > 128 else 32), 4
    return 64, min(columns, 32 if states > 128 else 64), 4
