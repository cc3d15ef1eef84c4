# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""The causal convolution of a channel at a time over packed sequences, its activation with it, and the shift by one."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 128


@triton.jit
def convolve_rows(
    X, WEIGHT, BIAS, TILES, OUT, channels, x_t, x_c, w_c, w_k, out_t, TAPS: tl.constexpr, BIASED: tl.constexpr,
    SILU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of one sequence's rows and some channels, in float32. Rows of no sequence are zeros."""
    tile = TILES + tl.program_id(0) * 4
    row = tl.load(tile)
    row_end = tl.load(tile + 1)
    begin = tl.load(tile + 2)
    end = tl.load(tile + 3)
    rows = row + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < channels
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    if BIASED:
        summed += tl.load(BIAS + columns, mask=within, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        back = rows - (TAPS - 1 - tap)
        seen = (back[:, None] >= begin) & (rows[:, None] < end) & within[None, :]
        at = X + back[:, None].to(tl.int64) * x_t + columns[None, :].to(tl.int64) * x_c
        # The operands are of the weight's dtype.
        value = tl.load(at, mask=seen, other=0.0).to(WEIGHT.dtype.element_ty).to(tl.float32)
        summed += value * tl.load(WEIGHT + columns * w_c + tap * w_k, mask=within, other=0.0).to(tl.float32)[None, :]
    if SILU:
        # As where two operators compute it: the sum is rounded before it is activated.
        summed = summed.to(WEIGHT.dtype.element_ty).to(tl.float32)
        summed = summed / (1.0 + tl.exp(-summed))
    summed = tl.where(rows[:, None] < end, summed, 0.0)
    at = OUT + rows[:, None].to(tl.int64) * out_t + columns[None, :]
    tl.store(at, summed.to(OUT.dtype.element_ty), mask=(rows[:, None] < row_end) & within[None, :])


@torch.library.triton_op("headrace::causal_conv1d_triton", mutates_args=())
def causal_conv1d_triton(x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tensor, silu: bool) -> Tensor:
    """`headrace::causal_conv1d_varlen`, and SiLU of it where that is asked for.

    Args:
        tiles: of `headrace::varlen_tiles`, of ROWS rows.
    """
    return convolved(x, weight, bias, tiles, silu, torch.library.wrap_triton(convolve_rows))


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tensor, silu: bool, kernel: Any = convolve_rows
) -> Tensor:
    """The launch."""
    _, channels, tokens = x.shape
    out = weight.new_empty((1, tokens, channels))
    kernel[(tiles.shape[0], (channels + COLUMNS - 1) // COLUMNS)](
        x, weight, weight if bias is None else bias, tiles, out, channels, x.stride(2), x.stride(1), weight.stride(0),
        weight.stride(1), channels, TAPS=weight.shape[1], BIASED=bias is not None, SILU=silu, ROWS=ROWS,
        COLUMNS=COLUMNS,
    )  # fmt: skip
    return out.transpose(1, 2)


@triton.jit
def shift_rows(X, TILES, OUT, width, x_t, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The row before each, and zeros where a sequence begins."""
    tile = TILES + tl.program_id(0) * 4
    rows = tl.load(tile) + tl.arange(0, ROWS)
    row_end = tl.load(tile + 1)
    begin = tl.load(tile + 2)
    end = tl.load(tile + 3)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns[None, :] < width
    before = (rows[:, None] > begin) & (rows[:, None] < end) & within
    at = X + (rows[:, None] - 1).to(tl.int64) * x_t + columns[None, :]
    value = tl.load(at, mask=before, other=0.0)
    out = OUT + rows[:, None].to(tl.int64) * width + columns[None, :]
    tl.store(out, value, mask=(rows[:, None] < row_end) & within)


@torch.library.triton_op("headrace::token_shift_triton", mutates_args=())
def token_shift_triton(x: Tensor, tiles: Tensor) -> Tensor:
    """`headrace::token_shift_varlen`; the tiles are those of the convolution."""
    return shifted(x, tiles, torch.library.wrap_triton(shift_rows))


def shifted(x: Tensor, tiles: Tensor, kernel: Any = shift_rows) -> Tensor:
    """The launch."""
    x = x if x.stride(2) == 1 else x.contiguous()
    out = x.new_empty(x.shape)
    grid = (tiles.shape[0], (x.shape[2] + COLUMNS - 1) // COLUMNS)
    kernel[grid](x, tiles, out, x.shape[2], x.stride(1), ROWS=ROWS, COLUMNS=COLUMNS)
    return out
