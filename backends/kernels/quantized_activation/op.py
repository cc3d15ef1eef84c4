# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"

"""An activation whose rows go into a product in eight bits: computed, measured and rounded in one pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.linear_activation.kernel import activated
from headrace.ops import quantized

# Triton reads a global that says it is constant.
LARGEST: tl.constexpr = tl.constexpr(quantized.LARGEST)
LEAST: tl.constexpr = tl.constexpr(quantized.LEAST)
# A row is held in the registers of one program, and this is as much as they hold.
WIDEST = 16384
ELEMENTS = 512  # of a row that a warp holds


@triton.jit
def round_rows(
    Y, OUT, SCALE, y_t, WIDTH: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr, LATE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row a program; all in float32 until it is rounded."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < WIDTH
    at = Y + row * y_t + column
    value = tl.load(at, mask=real, other=0.0).to(tl.float32)
    if GATED:
        last = tl.load(at + WIDTH, mask=real, other=0.0).to(tl.float32)
        value = activated(last, KIND) * value if LATE else activated(value, KIND) * last
    else:
        value = activated(value, KIND)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / LARGEST, LEAST)
    tl.store(OUT + row * WIDTH + column, (value * (1.0 / scale)).to(OUT.dtype.element_ty), mask=real)
    tl.store(SCALE + row, scale)


@torch.library.triton_op("headrace::round_activated", mutates_args=())
def round_activated(y: Tensor, kind: str, gated: bool, late: bool) -> tuple[Tensor, Tensor]:
    """`round_to_float8` of an activation.

    Args:
        y: [T, N], or [T, 2N] where it is gated, its columns side by side; the rest as for `linear_activated`.

    Returns:
        Float8 [T, N], and float32 [T, 1], by which each row is to be multiplied.
    """
    return round_activation(y, kind, gated, late, torch.library.wrap_triton(round_rows))


def round_activation(y: Tensor, kind: str, gated: bool, late: bool, kernel: Any = round_rows) -> tuple[Tensor, Tensor]:
    """The launch."""
    assert y.stride(1) == 1, "a row's columns lie side by side"
    rows, width = y.shape[0], y.shape[1] // (2 if gated else 1)
    out = y.new_empty((rows, width), dtype=quantized.FLOAT8)
    scale = y.new_empty((rows, 1), dtype=torch.float32)
    block = triton.next_power_of_2(width)
    kernel[(rows,)](
        y, out, scale, y.stride(0), WIDTH=width, KIND=kind, GATED=gated, LATE=late, BLOCK=block,
        num_warps=min(16, max(1, block // ELEMENTS)),
    )  # fmt: skip
    return out, scale
