# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
"""A kernel that does nothing but convert: codes of float8 to numbers, and numbers to codes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.backends.kernels.float8 import decoded, encoded


@triton.jit
def convert_codes(CODES, NUMBERS, X, MADE, few, many, BLOCK: tl.constexpr, NATIVE: tl.constexpr):
    """Each code to its number, and each number to its code, by a scale of one."""
    place = tl.arange(0, BLOCK)
    codes = tl.load(CODES + place, mask=place < few, other=0)
    like = tl.load(NUMBERS + place, mask=place < few, other=0.0)
    tl.store(NUMBERS + place, decoded(codes, like, NATIVE), mask=place < few)
    x = tl.load(X + place, mask=place < many, other=0.0)
    tl.store(MADE + place, encoded(x, tl.full([BLOCK], 1.0, tl.float32)), mask=place < many)


def convert(codes: Tensor, numbers: Tensor, x: Tensor, made: Tensor, native: bool) -> None:
    """Fill `numbers` with what codes stand for, and `made` with the codes of `x`."""
    block = triton.next_power_of_2(max(len(codes), len(x)))
    convert_codes[(1,)](codes, numbers, x, made, len(codes), len(x), BLOCK=block, NATIVE=native)
