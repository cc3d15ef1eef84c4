# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""Mamba-2's scan over packed sequences in chunks: products within a chunk, the state in registers between chunks."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, decays, sequence_rows, side_by_side, step_size


@triton.jit
def scan_chunks(
    X, DT, A, B, C, D, DT_BIAS, CU_SEQLENS, OUT, count, tokens, x_t, x_h, dt_t, dt_h, b_t, b_g, c_t, c_g, d_h, d_p,
    LEAST: tl.constexpr, MOST: tl.constexpr, RISES: tl.constexpr, FALLS: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, STATE: tl.constexpr, SKIPS: tl.constexpr, BIASED: tl.constexpr,
    SOFTPLUS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """One sequence, one head and some columns of it. Products are of the operands' dtype and add up in float32.

    LEAST and MOST bound the steps where RISES and FALLS say so.
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
    group = head // GROUP
    kind: tl.constexpr = X.dtype.element_ty
    state = tl.zeros([STATES, COLUMNS], tl.float32)
    for start in range(begin, end, CHUNK):
        real = place < end - start
        # Offsets from the chunk's first row fit in 32 bits, those from the first of all need not.
        first = tl.cast(start, tl.int64)
        step = tl.load(DT + first * dt_t + head * dt_h + place * dt_t, mask=real, other=0.0)
        step = step_size(step, bias, SOFTPLUS)
        if RISES:
            step = tl.maximum(step, LEAST)
        if FALLS:
            step = tl.minimum(step, MOST)
        step = tl.where(real, step, 0.0)
        since, between, until, whole = decays(step * a, CHUNK)
        shown = real[:, None] & within[None, :]
        seen = real[:, None] & kept[None, :]
        c = tl.load(C + first * c_t + group * c_g + place[:, None] * c_t + states[None, :], mask=seen, other=0.0)
        y = tl.dot(c, state.to(kind), input_precision="ieee") * since[:, None]
        b = tl.load(B + first * b_t + group * b_g + place[:, None] * b_t + states[None, :], mask=seen, other=0.0)
        scores = tl.dot(c, tl.trans(b), input_precision="ieee") * between * step[None, :]
        x = tl.load(X + first * x_t + head * x_h + place[:, None] * x_t + columns[None, :], mask=shown, other=0.0)
        y += tl.dot(scores.to(kind), x, input_precision="ieee")
        added = (x.to(tl.float32) * (step * until)[:, None]).to(kind)
        state = state * whole + tl.dot(tl.trans(b), added, input_precision="ieee")
        if SKIPS:
            skip = tl.load(D + head * d_h + columns * d_p, mask=within, other=0.0)
            y += x.to(tl.float32) * skip.to(tl.float32)[None, :]
        out = OUT + first * out_t + head * WIDTH
        tl.store(out + place[:, None] * out_t + columns[None, :], y, mask=shown)


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
    blocks: list[int],
) -> Tensor:
    """`headrace::chunk_scan_varlen`.

    Args:
        blocks: the tuning, the fields of a `Scan`.
    """
    kernel = torch.library.wrap_triton(scan_chunks)
    return chunk_scanned(x, dt, a, b, c, d, dt_bias, softplus, dt_min, dt_max, cu_seqlens, blocks, kernel)


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
    blocks: list[int],
    kernel: Any = scan_chunks,
) -> Tensor:
    """The launch."""
    _, tokens, heads, width = x.shape
    groups, state = b.shape[2:]
    x, b, c = (side_by_side(rows.to(x.dtype)) for rows in (x, b, c))
    out = x.new_empty((1, tokens, heads, width), dtype=torch.float32)
    states = max(16, triton.next_power_of_2(state))
    chunk, columns, warps, stages = blocks
    columns = min(columns, max(16, triton.next_power_of_2(width)))
    count = cu_seqlens.shape[0] - 1
    kernel[(count + 1, heads, (width + columns - 1) // columns)](
        x, dt, a, b, c, x if d is None else d, x if dt_bias is None else dt_bias, cu_seqlens, out, count, tokens,
        x.stride(1), x.stride(2), dt.stride(1), dt.stride(2), b.stride(1), b.stride(2), c.stride(1), c.stride(2),
        0 if d is None else d.stride(0), d.stride(1) if d is not None and d.dim() == 2 else 0, LEAST=dt_min or 0.0,
        MOST=dt_max or 0.0, RISES=dt_min is not None, FALLS=dt_max is not None, HEADS=heads, GROUP=heads // groups,
        WIDTH=width, STATE=state, SKIPS=d is not None, BIASED=dt_bias is not None, SOFTPLUS=softplus, CHUNK=chunk,
        COLUMNS=columns, STATES=states, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
