# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
"""Numbers as codes of float8_e4m3fn, one byte each, on every architecture.

A row of them has a scale of its own, the largest of its numbers by the largest that a code stands for. Codes are made
by whole numbers, so that all architectures round alike; AMD's CDNA 3 has another float8, which is not used.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)
# A row of zeros has no scale of its own: the least normal float32, as `ops.quantized` has it.
LEAST = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def scale_of(largest):
    """Of rows by the largest of their sizes, in float32."""
    return tl.maximum(tl.div_rn(largest, LARGEST), LEAST)


@triton.jit
def encoded(x, scale):
    """The codes of float32 numbers by their scale, to the nearest one and from the middle to the even one."""
    scaled = tl.div_rn(x, scale)
    bits = scaled.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Three bits of the fraction's 23 are kept, and exponents count from -7 in place of -127.
    code = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 codes are the multiples of 2^-9, to which a sum with 2^14 rounds.
    small = (tl.abs(scaled) + 16384.0).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < (121 << 23), small, tl.minimum(code, 0x7E))
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decoded(codes, like, NATIVE: tl.constexpr):
    """What codes stand for, in the dtype of `like`: every code is a number of float16 and of bfloat16.

    NATIVE where the architecture converts float8_e4m3fn itself. Elsewhere the code's bits in their places in a float16
    are 2^-8 of the number.
    """
    if NATIVE:
        return codes.to(tl.float8e4nv, bitcast=True).to(like.dtype)
    wide = codes.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return (half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(like.dtype)
