# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0913, PLR0917 - a kernel takes plain arguments
"""A linear layer and the activation after it in one kernel; and the activation by itself, for rows that are few."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.backends.gpu.passes.fast_gelu import SERIES, SPREAD

# Triton reads a global that says it is constant.
NEARNESS: tl.constexpr = tl.constexpr(SPREAD)
A1: tl.constexpr = tl.constexpr(SERIES[0])
A2: tl.constexpr = tl.constexpr(SERIES[1])
A3: tl.constexpr = tl.constexpr(SERIES[2])
A4: tl.constexpr = tl.constexpr(SERIES[3])
A5: tl.constexpr = tl.constexpr(SERIES[4])
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
ROOT_2_PI: tl.constexpr = tl.constexpr(0.7978845608028654)  # the root of 2 / pi


@triton.jit
def sigmoid(x):
    """`1 / (1 + exp(-x))`."""
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))


@triton.jit
def activated(x, KIND: tl.constexpr):
    """One of `activated.KINDS`, in float32. GELU by erf as `activations.erf_gelu` has it."""
    if KIND == "gelu":
        size = tl.abs(x)
        root = tl.rsqrt(size * NEARNESS + 1.0)
        near = root * root
        series = ((((near * A5 + A4) * near + A3) * near + A2) * near + A1) * near
        x = tl.maximum(x, 0.0) - size * (series * tl.exp2(x * x * (-0.5 * LOG2_E)))
    elif KIND == "gelu_tanh":
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y. Triton's interpreter wants the tensor before a global constant.
        x = x * sigmoid((x + 0.044715 * x * x * x) * (2.0 * ROOT_2_PI))
    elif KIND == "silu":
        x = x * sigmoid(x)
    else:
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def multiply_activate(
    X, WEIGHT, BIAS, OUT, rows, columns, depth, KIND: tl.constexpr, GATED: tl.constexpr, LATE: tl.constexpr,
    BIASED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """A tile of the output a program; `X`, `WEIGHT` and `OUT` are descriptors, which read zeros past the end."""
    # Programs that run at once share rows of X and of WEIGHT: BAND tiles of rows, then the next columns.
    across = tl.cdiv(columns, BLOCK_N)
    band = tl.program_id(0) // (BAND * across)
    height = tl.minimum(tl.cdiv(rows, BLOCK_M) - band * BAND, BAND)
    place = tl.program_id(0) % (BAND * across)
    row = (band * BAND + place % height) * BLOCK_M
    column = (place // height) * BLOCK_N
    shaped = column + (columns if LATE else 0)  # where the weights of what is activated begin
    gating = column + (0 if LATE else columns)
    value = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if GATED:
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, depth, BLOCK_K):
        x = X.load([row, begin])
        value = tl.dot(x, WEIGHT.load([shaped, begin]).T, value, input_precision="ieee")
        if GATED:
            gate = tl.dot(x, WEIGHT.load([gating, begin]).T, gate, input_precision="ieee")
    if BIASED:
        lanes = tl.arange(0, BLOCK_N)
        real = column + lanes < columns
        value += tl.load(BIAS + shaped + lanes, mask=real, other=0.0).to(tl.float32)[None, :]
        if GATED:
            gate += tl.load(BIAS + gating + lanes, mask=real, other=0.0).to(tl.float32)[None, :]
    value = activated(value, KIND)
    if GATED:
        value *= gate
    OUT.store([row, column], value.to(OUT.dtype))


@triton.jit
def activate_rows(
    Y, OUT, count, columns, KIND: tl.constexpr, GATED: tl.constexpr, LATE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The activation of a finished product, `[rows, columns]`, or twice the columns where it is gated."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    if GATED:
        first = Y + at + (at // columns) * columns
        late = tl.load(first + columns, mask=real, other=0.0).to(tl.float32)
        early = tl.load(first, mask=real, other=0.0).to(tl.float32)
        value = activated(late, KIND) * early if LATE else activated(early, KIND) * late
    else:
        value = activated(tl.load(Y + at, mask=real, other=0.0).to(tl.float32), KIND)
    tl.store(OUT + at, value.to(OUT.dtype.element_ty), mask=real)
