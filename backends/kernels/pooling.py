# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
"""Pooling of packed sequences by a kernel of ours: no atomics, so a sum has one order and a call equals the next."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.early import wait_if

ROWS, COLUMNS = 16, 128


@triton.jit
def reduce_sequences(
    HIDDEN, CU_SEQLENS, OUT, h_t, width, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One sequence and some columns a program, in float32. An empty sequence gives zeros."""
    wait_if(EARLY)
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.load(CU_SEQLENS + sequence)
    end = tl.load(CU_SEQLENS + sequence + 1)
    if KIND == "cls":
        end = tl.minimum(end, begin + 1)
    if KIND == "last":
        begin = tl.maximum(begin, end - 1)
    empty: tl.constexpr = float("-inf") if KIND == "max" else 0.0
    found = tl.full([ROWS, COLUMNS], empty, tl.float32)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        real = (rows[:, None] < end) & (columns[None, :] < width)
        # Past 2^31 elements an int32 offset would wrap.
        at = HIDDEN + rows[:, None].to(tl.int64) * h_t + columns[None, :]
        values = tl.load(at, mask=real, other=empty).to(tl.float32)
        if KIND == "max":
            found = tl.maximum(found, values)
        elif KIND == "weightedmean":
            found += values * (rows[:, None] - begin + 1).to(tl.float32)
        else:
            found += values
    count = tl.maximum(end - begin, 1).to(tl.float32)
    if KIND == "max":
        pooled = tl.where(end > begin, tl.max(found, 0), 0.0)
    elif KIND == "weightedmean":
        pooled = tl.sum(found, 0) / (count * (count + 1.0) * 0.5)
    elif KIND == "mean_sqrt_len_tokens":
        pooled = tl.sum(found, 0) / tl.sqrt(count)
    else:
        pooled = tl.sum(found, 0) / count
    at = OUT + sequence.to(tl.int64) * width + columns
    tl.store(at, pooled.to(OUT.dtype.element_ty), mask=columns < width)


@torch.library.triton_op("headrace::pool_varlen_triton", mutates_args=())
def pool_varlen_triton(hidden: Tensor, cu_seqlens: Tensor, kind: str) -> Tensor:
    """`headrace::pool_varlen` of every kind; `hidden` is [1, T, H] with its columns side by side."""
    return reduced(hidden, cu_seqlens, kind, torch.library.wrap_triton(reduce_sequences))


def reduced(hidden: Tensor, cu_seqlens: Tensor, kind: str, kernel: Any = reduce_sequences) -> Tensor:
    """The launch."""
    assert hidden.stride(2) == 1, "a row's columns lie side by side"
    count, width = cu_seqlens.shape[0] - 1, hidden.shape[2]
    out = hidden.new_empty((count, width))
    grid = (count, (width + COLUMNS - 1) // COLUMNS)
    kernel[grid](hidden, cu_seqlens, out, hidden.stride(1), width, KIND=kind, ROWS=ROWS, COLUMNS=COLUMNS, EARLY=False)
    return out
