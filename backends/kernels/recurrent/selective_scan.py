# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""Mamba's selective scan over packed sequences: a token at a time, the states of some channels in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.recurrent.rows import clear_rows, sequence_rows, step_size

COLUMNS = 32


@triton.jit
def scan_tokens(
    X, DT, A, B, C, D, Z, DT_BIAS, CU_SEQLENS, OUT, count, tokens, channels, x_d, x_t, dt_d, dt_t, a_d, a_n, b_n, b_t,
    c_n, c_t, z_d, z_t, STATE: tl.constexpr, SKIPS: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr,
    SOFTPLUS: tl.constexpr, COLUMNS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """One sequence and some channels of it, in float32."""
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    states = tl.arange(0, STATES)
    within = columns < channels
    kept = states < STATE
    begin, end = sequence_rows(CU_SEQLENS, sequence, count)
    clear_rows(OUT, begin, tokens, sequence, count, channels, columns, within, 16)
    shown = within[:, None] & kept[None, :]
    a = tl.load(A + columns[:, None] * a_d + states[None, :] * a_n, mask=shown, other=0.0).to(tl.float32)
    bias = tl.load(DT_BIAS + columns, mask=within, other=0.0).to(tl.float32) if BIASED else 0.0
    skip = tl.load(D + columns, mask=within, other=0.0).to(tl.float32) if SKIPS else 0.0
    channel = columns.to(tl.int64)
    state = tl.zeros([COLUMNS, STATES], tl.float32)
    for token in range(begin, end):
        row = tl.cast(token, tl.int64)
        x = tl.load(X + channel * x_d + row * x_t, mask=within, other=0.0).to(tl.float32)
        step = step_size(tl.load(DT + channel * dt_d + row * dt_t, mask=within, other=0.0), bias, SOFTPLUS)
        b = tl.load(B + states * b_n + row * b_t, mask=kept, other=0.0).to(tl.float32)
        c = tl.load(C + states * c_n + row * c_t, mask=kept, other=0.0).to(tl.float32)
        state = tl.exp(step[:, None] * a) * state + (step * x)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], 1) + skip * x
        if GATED:
            z = tl.load(Z + channel * z_d + row * z_t, mask=within, other=0.0).to(tl.float32)
            y *= z / (1.0 + tl.exp(-z))
        tl.store(OUT + row * channels + columns, y, mask=within)


@torch.library.triton_op("headrace::selective_scan_triton", mutates_args=())
def selective_scan_triton(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    cu_seqlens: Tensor,
) -> Tensor:
    """`headrace::selective_scan_varlen`."""
    kernel = torch.library.wrap_triton(scan_tokens)
    return selectively_scanned(x, dt, a, b, c, d, z, dt_bias, softplus, cu_seqlens, kernel)


def selectively_scanned(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    cu_seqlens: Tensor,
    kernel: Any = scan_tokens,
) -> Tensor:
    """The launch."""
    _, channels, tokens = x.shape
    out = x.new_empty((1, tokens, channels), dtype=torch.float32)
    gate = x if z is None else z
    strides = [size for rows in (x, dt) for size in rows.stride()[1:]]
    strides += [*a.stride(), *(size for rows in (b, c, gate) for size in rows.stride()[1:])]
    count = cu_seqlens.shape[0] - 1
    kernel[(count + 1, (channels + COLUMNS - 1) // COLUMNS)](
        x, dt, a, b, c, x if d is None else d, gate, x if dt_bias is None else dt_bias, cu_seqlens, out, count, tokens,
        channels, *strides, STATE=a.shape[1], SKIPS=d is not None, GATED=z is not None, BIASED=dt_bias is not None,
        SOFTPLUS=softplus, COLUMNS=COLUMNS, STATES=triton.next_power_of_2(a.shape[1]), num_warps=2,
    )  # fmt: skip
    return out.transpose(1, 2)
