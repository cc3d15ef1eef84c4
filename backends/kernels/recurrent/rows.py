# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"

"""What the kernels of recurrences share: where a program's sequence lies, and rows that belong to none."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def sequence_rows(CU_SEQLENS, sequence, count):
    """Where a sequence begins and ends; after the last there is one of no tokens, where the filling begins."""
    begin = tl.load(CU_SEQLENS + sequence)
    end = tl.load(CU_SEQLENS + sequence + 1, mask=sequence < count, other=0)
    return begin, tl.where(sequence < count, end, begin)


@triton.jit
def clear_rows(OUT, begin, tokens, sequence, count, out_t, columns, within, ROWS: tl.constexpr):
    """Zeros in some columns of the rows past the last sequence, by the program that comes after it."""
    for start in range(tl.where(sequence < count, tokens, begin), tokens, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = OUT + rows[:, None].to(tl.int64) * out_t + columns[None, :]
        nothing = tl.zeros([ROWS, columns.shape[0]], OUT.dtype.element_ty)
        tl.store(at, nothing, mask=(rows[:, None] < tokens) & within[None, :])


@triton.jit
def decays(log, CHUNK: tl.constexpr):
    """What is left at each token of a chunk: of what came before it, of each earlier token's, and at the end of both.

    Sums run in float64, since their differences must not lose small steps that follow large ones. A sum in two parts of
    float32 each has such differences too, and takes no registers for a matrix in float64.
    """
    place = tl.arange(0, CHUNK)
    wide = log.to(tl.float64)
    since, total = tl.cumsum(wide, 0), tl.sum(wide, 0)
    high = since.to(tl.float32)
    low = (since - high.to(tl.float64)).to(tl.float32)
    between = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    between = tl.where(place[:, None] >= place[None, :], tl.exp(between), 0.0)
    return tl.exp(high), between, tl.exp((total - since).to(tl.float32)), tl.exp(total.to(tl.float32))


@triton.jit
def step_size(raw, bias, SOFTPLUS: tl.constexpr):
    """`softplus(raw + bias)`, or their sum, in float32."""
    sized = raw.to(tl.float32) + bias
    if SOFTPLUS:
        # log1p(e^-|x|) + max(x, 0), whose series for small e keeps what adding one would lose.
        small = tl.exp(-tl.abs(sized))
        series = small * (1.0 - small * (0.5 - small * (1.0 / 3.0 - small * 0.25)))
        sized = tl.maximum(sized, 0.0) + tl.where(small < 0.01, series, tl.log(1.0 + small))
    return sized


def side_by_side(x: Tensor) -> Tensor:
    """With the elements of its last dimension next to one another."""
    return x if x.stride(-1) == 1 else x.contiguous()
