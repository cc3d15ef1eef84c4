# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""XLSTM's matrix memory over packed sequences: a token at a time, some columns of the memory in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, sequence_rows, side_by_side

COLUMNS = 16


@triton.jit
def remember_tokens(
    Q, K, V, OPENING, FORGETTING, CU_SEQLENS, OUT, count, tokens, q_h, q_t, k_h, k_t, v_h, v_t, i_h, i_t, f_h, f_t,
    SCALE: tl.constexpr, EPSILON: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One sequence, one head and some columns of its values, in float32, all divided by the largest gate so far."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < VALUE
    keys = tl.arange(0, KEYS)
    seen = keys < KEY
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, HEADS * VALUE, head * VALUE + columns, within, 16)
    memory = tl.zeros([KEYS, COLUMNS], tl.float32)
    norm = tl.zeros([KEYS], tl.float32)
    largest = 0.0
    for token in range(begin, end):
        row = tl.cast(token, tl.int64)
        q = tl.load(Q + head * q_h + row * q_t + keys, mask=seen, other=0.0).to(tl.float32) * SCALE
        k = tl.load(K + head * k_h + row * k_t + keys, mask=seen, other=0.0).to(tl.float32)
        v = tl.load(V + head * v_h + row * v_t + columns, mask=within, other=0.0).to(tl.float32)
        opened = tl.load(OPENING + head * i_h + row * i_t).to(tl.float32)
        forgot = tl.load(FORGETTING + head * f_h + row * f_t).to(tl.float32)
        # log(sigmoid(f)), of which neither end overflows.
        before = largest + tl.minimum(forgot, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(forgot)))
        largest = tl.maximum(before, opened)
        forget = tl.exp(before - largest)
        written = tl.exp(opened - largest) * k
        memory = forget * memory + written[:, None] * v[None, :]
        norm = forget * norm + written
        size = tl.maximum(tl.abs(tl.sum(q * norm, 0)), tl.exp(-largest)) + EPSILON
        y = tl.sum(memory * q[:, None], 0) / size
        at = OUT + row * (HEADS * VALUE) + head * VALUE + columns
        tl.store(at, y.to(OUT.dtype.element_ty), mask=within)


@torch.library.triton_op("headrace::mlstm_triton", mutates_args=())
def mlstm_triton(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float, cu_seqlens: Tensor
) -> Tensor:  # fmt: skip
    """`headrace::mlstm_varlen`."""
    return remembered(q, k, v, i, f, epsilon, cu_seqlens, torch.library.wrap_triton(remember_tokens))


def remembered(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, epsilon: float, cu_seqlens: Tensor,
    kernel: Any = remember_tokens,
) -> Tensor:  # fmt: skip
    """The launch."""
    q, k, v = map(side_by_side, (q, k, v))
    _, heads, tokens, key = q.shape
    width, count = v.shape[3], cu_seqlens.shape[0] - 1
    out = q.new_empty((1, tokens, heads, width))
    strides = [size for rows in (q, k, v, i, f) for size in rows.stride()[1:3]]
    kernel[(count + 1, heads, (width + COLUMNS - 1) // COLUMNS)](
        q, k, v, i, f, cu_seqlens, out, count, tokens, *strides, SCALE=key**-0.5, EPSILON=epsilon, HEADS=heads, KEY=key,
        VALUE=width, KEYS=triton.next_power_of_2(key), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out.transpose(1, 2)
