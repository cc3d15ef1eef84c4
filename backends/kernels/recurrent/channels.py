# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"

"""Recurrences of a channel at a time over packed sequences: RG-LRU's and RWKV's, a token after the other."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, sequence_rows, side_by_side
from headrace.ops import linear_recurrence

COLUMNS = 64
LEAST = tl.constexpr(linear_recurrence.LEAST)


@triton.jit
def recur_linearly(X, DECAY, CU_SEQLENS, OUT, count, tokens, width, x_t, decay_t, COLUMNS: tl.constexpr):
    """One sequence and some channels of it, in float32."""
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < width
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, width, columns, within, 16)
    state = tl.zeros([COLUMNS], tl.float32)
    for token in range(begin, end):
        row = tl.cast(token, tl.int64)
        decay = tl.load(DECAY + row * decay_t + columns, mask=within, other=0.0).to(tl.float32)
        state = decay * state + tl.load(X + row * x_t + columns, mask=within, other=0.0).to(tl.float32)
        tl.store(OUT + row * width + columns, state.to(OUT.dtype.element_ty), mask=within)


@torch.library.triton_op("headrace::linear_recurrence_triton", mutates_args=())
def linear_recurrence_triton(x: Tensor, decay: Tensor, cu_seqlens: Tensor) -> Tensor:
    """`headrace::linear_recurrence_varlen`."""
    return linearly_recurred(x, decay, cu_seqlens, torch.library.wrap_triton(recur_linearly))


def linearly_recurred(x: Tensor, decay: Tensor, cu_seqlens: Tensor, kernel: Any = recur_linearly) -> Tensor:
    """The launch."""
    x, decay = side_by_side(x), side_by_side(decay)
    _, tokens, width = x.shape
    out, count = x.new_empty((1, tokens, width)), cu_seqlens.shape[0] - 1
    kernel[(count + 1, (width + COLUMNS - 1) // COLUMNS)](
        x, decay, cu_seqlens, out, count, tokens, width, x.stride(1), decay.stride(1), COLUMNS=COLUMNS, num_warps=2
    )
    return out


@triton.jit
def weigh_values(DECAY, FIRST, K, V, CU_SEQLENS, OUT, count, tokens, width, k_t, v_t, COLUMNS: tl.constexpr):
    """One sequence and some channels of it, in float32, the largest log weight so far beside the sums."""
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < width
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, width, columns, within, 16)
    forget = -tl.exp(tl.load(DECAY + columns, mask=within, other=0.0).to(tl.float32))
    first = tl.load(FIRST + columns, mask=within, other=0.0).to(tl.float32)
    values = tl.zeros([COLUMNS], tl.float32)
    weights = tl.zeros([COLUMNS], tl.float32)
    largest = tl.full([COLUMNS], LEAST, tl.float32)
    for token in range(begin, end):
        row = tl.cast(token, tl.int64)
        k = tl.load(K + row * k_t + columns, mask=within, other=0.0).to(tl.float32)
        v = tl.load(V + row * v_t + columns, mask=within, other=0.0).to(tl.float32)
        top = tl.maximum(largest, k + first)
        before, now = tl.exp(largest - top), tl.exp(k + first - top)
        y = (before * values + now * v) / (before * weights + now)
        tl.store(OUT + row * width + columns, y.to(OUT.dtype.element_ty), mask=within)
        top = tl.maximum(largest + forget, k)
        before, now = tl.exp(largest + forget - top), tl.exp(k - top)
        values = before * values + now * v
        weights = before * weights + now
        largest = top


@torch.library.triton_op("headrace::wkv_triton", mutates_args=())
def wkv_triton(decay: Tensor, first: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """`headrace::wkv_varlen`."""
    return weighed(decay, first, k, v, cu_seqlens, torch.library.wrap_triton(weigh_values))


def weighed(
    decay: Tensor, first: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, kernel: Any = weigh_values
) -> Tensor:
    """The launch."""
    k, v = side_by_side(k), side_by_side(v)
    _, tokens, width = k.shape
    out, count = k.new_empty((1, tokens, width)), cu_seqlens.shape[0] - 1
    kernel[(count + 1, (width + COLUMNS - 1) // COLUMNS)](
        decay, first, k, v, cu_seqlens, out, count, tokens, width, k.stride(1), v.stride(1), COLUMNS=COLUMNS,
        num_warps=2,
    )  # fmt: skip
    return out
