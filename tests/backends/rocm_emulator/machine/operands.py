"""An instruction's operands: where each comes from and where the result goes, as functions of the registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine.state import Waves

Array = NDArray[Any]
Reader = Callable[[Waves], Array]
VECTOR, LITERAL = 256, 255  # in the nine bits of a source: the first vector register, and a word behind the code
VCCZ, EXECZ, SCC = 251, 252, 253
INVERSE_OF_TWO_PI = 0.15915494309189535
FLOATS = {
    240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0, 248: INVERSE_OF_TWO_PI,
}  # fmt: skip
FLOAT_DTYPES: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
SIGNS = {32: 0x8000_0000, 64: 1 << 63}
# Keys of registers in the sets of what an instruction touches.
SCALAR_KEY = 1000


def source(instruction: Instruction, name: str) -> tuple[Reader, frozenset[int]]:
    """How to read an operand, as uint32 or, of pairs, uint64 [waves, lanes], or less; and what it touches.

    Args:
        name: of the field.
    """
    offset = getattr(instruction.raw, name).offset
    plain = name.removeprefix("v") if name in ("vsrc0", "vsrc1") else name
    width = instruction.widths.get(name, instruction.widths.get(plain, 32))
    kind = instruction.formats.get(name, instruction.formats.get(plain, "B32"))
    return located(instruction, offset, 64 if width == 64 else 32, kind)


def located(instruction: Instruction, offset: int, width: int, kind: str) -> tuple[Reader, frozenset[int]]:
    """How to read what an encoded place names."""
    wide = width == 64
    if offset >= VECTOR:
        return vector(offset - VECTOR, wide), keys(offset, 2 if wide else 1)
    if offset < 128:
        return _scalar(offset, wide), keys(offset, 2 if wide else 1)
    if offset in (VCCZ, EXECZ, SCC):
        raise UnknownInstructionError(f"{instruction} reads {offset} as a number")
    value = _constant(instruction, offset, wide, kind)
    return (lambda waves: value), frozenset()


def keys(offset: int, count: int) -> frozenset[int]:
    """Of so many registers from an encoded place on."""
    first = offset - VECTOR if offset >= VECTOR else offset + SCALAR_KEY
    return frozenset(range(first, first + count))


def vector(register: int, wide: bool) -> Reader:
    """A vector register, or a pair of them."""
    if not wide:
        return lambda waves: waves.vector[register]

    def pair(waves: Waves) -> Array:
        low, high = waves.vector[register], waves.vector[register + 1]
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    return pair


def _scalar(register: int, wide: bool) -> Reader:
    if wide:
        return lambda waves: waves.pair(register)[:, None]
    return lambda waves: waves.scalar[register][:, None]


def _constant(instruction: Instruction, offset: int, wide: bool, kind: str) -> Array:
    dtype = np.uint64 if wide else np.uint32
    if 128 <= offset <= 208:
        number = offset - 128 if offset <= 192 else 192 - offset
        return np.full((1, 1), number & ((1 << (64 if wide else 32)) - 1), dtype)
    if offset in FLOATS:
        made = np.full((1, 1), FLOATS[offset], FLOAT_DTYPES.get(kind, np.float64 if wide else np.float32))
        return made.view(f"u{made.itemsize}").astype(dtype)
    if offset == LITERAL:
        literal = instruction.raw._literal
        if literal is None:
            raise UnknownInstructionError(f"{instruction} names a literal that the decoder did not find")
        if wide and kind == "F64":
            literal <<= 32
        return np.full((1, 1), literal, dtype)
    raise UnknownInstructionError(f"{instruction} has an operand at {offset}, which is not modelled")


def modified(read: Reader, kind: str, wide: bool, negate: bool, absolute: bool) -> Reader:
    """A float's sign removed, or turned."""
    if not (negate or absolute):
        return read
    if kind not in ("F32", "F64", "B32"):  # B32: of a selection, which takes its operands for floats then
        raise UnknownInstructionError(f"a sign is changed of {kind}")
    dtype = np.uint64 if wide else np.uint32
    sign = dtype(SIGNS[64 if wide else 32])

    def changed(waves: Waves) -> Array:
        value = read(waves)
        if absolute:
            value = value & ~sign
        return value ^ sign if negate else value

    return changed


def halves(read: Reader, low: tuple[int, bool], high: tuple[int, bool]) -> Reader:
    """A pair of words put together anew: for either, which of the two it is, and whether its sign is turned."""
    if low == (0, False) and high == (1, False):
        return read
    sign = np.uint64(SIGNS[32])

    def word(value: Array, which: int, negate: bool) -> Array:
        found = (value >> np.uint64(32 * which)) & np.uint64(0xFFFF_FFFF)
        return found ^ sign if negate else found

    def swapped(waves: Waves) -> Array:
        value = read(waves)
        return word(value, *low) | (word(value, *high) << np.uint64(32))

    return swapped


def part(read: Reader, select: int, signed: bool) -> Reader:
    """SDWA: a byte (0 to 3) or a half (4, 5) of a word."""
    if select == 6:
        return read
    shift, width = (8 * select, 8) if select < 4 else (16 * (select - 4), 16)

    def cut(waves: Waves) -> Array:
        value = (read(waves) >> np.uint32(shift)) & np.uint32((1 << width) - 1)
        if signed:
            up = np.int32(32 - width)
            return ((value.view(np.int32) << up) >> up).view(np.uint32)
        return value

    return cut


def raw(value: Array) -> Array:
    """The bits of a result; 16 of them are filled with zeros, as gfx9 does."""
    array = np.asarray(value)
    if array.dtype == bool or array.dtype.itemsize < 4:
        array = array.view(f"u{array.dtype.itemsize}") if array.dtype != bool else array
        return array.astype(np.uint32)
    return array.view(np.uint64 if array.dtype.itemsize == 8 else np.uint32)


def put_vector(waves: Waves, register: int, value: Array, wide: bool) -> None:
    """A result into a vector register, or a pair of them."""
    bits = raw(value)
    if wide:
        bits = bits.astype(np.uint64)
        waves.put_vector(register, bits.astype(np.uint32))
        waves.put_vector(register + 1, (bits >> np.uint64(32)).astype(np.uint32))
    else:
        waves.put_vector(register, bits.astype(np.uint32, copy=False))


def put_scalar(waves: Waves, register: int, value: Array, wide: bool) -> None:
    """A result into a scalar register, or a pair of them."""
    bits = raw(value)[:, 0]
    if wide:
        waves.put_pair(register, np.broadcast_to(bits.astype(np.uint64), (waves.count,)))
    else:
        waves.put(register, bits.astype(np.uint32, copy=False))
