"""What the translated pseudocode calls: views, bits and conversions of arrays, and AMD's named functions.

Registers hold bits: arrays of uint32, or of uint64 for pairs. A value that was taken as a type is an array of that
dtype. Arithmetic is NumPy's: float64 where a product must be exact, rounded once to the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.pseudocode import UnknownPseudocodeError

Array = NDArray[Any]
RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
KINDS = {"u": np.uint32, "i": np.int32, "f": np.float32}
DTYPES: dict[str, Any] = {
    "u8": np.uint8, "i8": np.int8, "b8": np.uint8, "u16": np.uint16, "i16": np.int16, "b16": np.uint16,
    "f16": np.float16, "u32": np.uint32, "i32": np.int32, "b32": np.uint32, "f32": np.float32, "u64": np.uint64,
    "i64": np.int64, "b64": np.uint64, "f64": np.float64,
}  # fmt: skip
ALL = np.ones((1, 1), bool)
INF, NAN = np.float32(np.inf), np.float32(np.nan)
MODE_IEEE = True


def raw(value: Any) -> Array:
    """The bits of a value."""
    array = np.asarray(value)
    if array.dtype == bool:
        return array.astype(np.uint32)
    return array.view(RAW[array.dtype.itemsize])


def taken(value: Any, dtype: Any) -> Array:
    """The low bits of a value as another type, zeros where it has fewer."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    wanted = np.dtype(dtype)
    found = raw(array)
    if found.dtype.itemsize != wanted.itemsize:
        found = found.astype(RAW[wanted.itemsize])
    return found.view(wanted)


def narrow(value: Any, width: int, signed: bool) -> Array:
    """The low bits of a value as a number of fewer bits than any dtype has."""
    found = taken(value, np.int32 if signed else np.uint32)
    return (found << (32 - width)) >> (32 - width)


def typed(value: Any, kind: str) -> Array:
    """A value as what is assigned: the same number, cut to the type.

    Raises:
        UnknownPseudocodeError: a float would become a whole number without being told how.
    """
    array, wanted = np.asarray(value), np.dtype(DTYPES[kind])
    if kind.startswith("b"):
        return taken(array, wanted)
    if array.dtype.kind == "f" and wanted.kind in "iu":
        raise UnknownPseudocodeError(f"a {array.dtype} assigned to {kind}")
    return array if array.dtype == wanted else array.astype(wanted)


def cast(value: Any, kind: str) -> Any:
    """A number converted; a whole number that becomes a float is its bits, as AMD writes it."""
    if kind not in DTYPES:
        raise UnknownPseudocodeError(f"a conversion to {kind}")
    if isinstance(value, int) and kind.startswith("f"):
        return np.asarray(value, RAW[np.dtype(DTYPES[kind]).itemsize]).view(DTYPES[kind])
    return np.asarray(value).astype(DTYPES[kind])


def bits(value: Any, high: int, low: int) -> Array:
    """Some bits of a value, the lowest first; in reverse where `high` is below `low`."""
    found = raw(value)
    if high < low:
        return reversed_bits(found, low - high + 1)
    width = high - low + 1
    found = (found >> found.dtype.type(low)) & found.dtype.type((1 << width) - 1)
    return found.astype(np.uint32) if width <= 32 else found


def reversed_bits(found: Array, width: int) -> Array:
    """All bits, last first."""
    turned = np.zeros_like(found)
    for place in range(width):
        turned |= ((found >> found.dtype.type(place)) & found.dtype.type(1)) << found.dtype.type(width - 1 - place)
    return turned


def bit(value: Any, place: Any) -> Array:
    """One bit, as a number."""
    found = raw(value)
    return ((found >> np.asarray(place).astype(found.dtype)) & found.dtype.type(1)).astype(np.uint32)


def deposit(into: Any, high: int, low: int, value: Any) -> Array:
    """A value with some of its bits replaced."""
    old = raw(into)
    mask = ((1 << (high - low + 1)) - 1) << low
    kept = old & old.dtype.type(mask ^ ((1 << (8 * old.dtype.itemsize)) - 1))
    return kept | (raw(value).astype(old.dtype) << old.dtype.type(low))


def together(high: Any, low: Any) -> Array:
    """Two words side by side."""
    return (raw(high).astype(np.uint64) << np.uint64(32)) | raw(low).astype(np.uint64)


def truth(value: Any) -> Array:
    """A condition."""
    array = np.asarray(value)
    array = array.reshape((1, 1)) if array.ndim == 0 else array
    return array if array.dtype == bool else array != 0


def either(condition: Any, yes: Any, no: Any) -> Array:
    """Lane by lane."""
    return np.where(truth(condition), yes, no)


def chosen(mask: Array, new: Any, old: Any) -> Array:
    """What a branch assigns, in the lanes that took it."""
    if old is None:
        return np.asarray(new)
    new, old = np.asarray(new), np.asarray(old)
    if old.dtype != new.dtype and old.dtype.itemsize == new.dtype.itemsize:
        old = old.view(new.dtype)
    return np.where(mask, new, old)


def shifted(value: Any, sign: str, places: Any) -> Array:
    """A shift in the width of what is shifted."""
    array = np.asarray(value, np.uint32) if isinstance(value, int) else value
    count = np.asarray(places).astype(array.dtype)
    return np.left_shift(array, count) if sign == "<<" else np.right_shift(array, count)


def power(base: Any, exponent: Any) -> Any:
    """In float64 where the exponent is a whole number: a scale, which is exact."""
    return base**exponent if isinstance(exponent, int) else np.exp2(np.asarray(exponent).astype(np.float64))


def zeros(width: int) -> Array:
    """A variable that is declared."""
    return np.zeros((1, 1), np.uint64 if width > 32 else np.uint32)


def denormal(value: Any, kind: str) -> Array:
    """Whether a number is below the normal ones of its type."""
    array = np.asarray(value)
    least = np.finfo(DTYPES[kind]).tiny
    return (array != 0) & (np.abs(array) < least)


def call_fma(a: Any, b: Any, c: Any) -> Array:
    """One rounding; float32 by float64, whose product is exact (its sum is rounded, which very rarely shows)."""
    dtype = np.asarray(c).dtype
    return (np.asarray(a).astype(np.float64) * b + c).astype(dtype)


def call_pow(base: Any, exponent: Any) -> Array:
    """Of two."""
    assert base == 2.0, "only powers of two are asked for"
    return np.exp2(exponent)


def call_exponent(value: Any) -> Array:
    """The field, with its bias."""
    if value.dtype == np.float64:
        return ((raw(value) >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int32)
    return ((raw(value) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int32)


def call_ldexp(value: Any, by: Any) -> Array:
    """Scaled by a power of two."""
    return np.ldexp(value, by)


def call_signext(value: Any) -> Array:
    """The same number, wider."""
    return np.asarray(value).astype(np.int64)


def call_signext_from_bit(value: Any, width: Any) -> Array:
    """The low bits as a signed number."""
    up = (np.int64(64) - np.asarray(width).astype(np.int64)) & np.int64(63)
    found = (np.asarray(value).astype(np.int64) << up) >> up
    return np.where(np.asarray(width) == 0, 0, found)


def _saturated(value: Any, low: int, high: int) -> Array:
    wide = np.trunc(np.nan_to_num(np.asarray(value).astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300))
    return np.clip(wide, low, high).astype(np.int64)


def call_f32_to_i32(value: Any) -> Array:
    """Towards zero; what does not fit is the nearest that does, and no number is zero."""
    return _saturated(value, -(1 << 31), (1 << 31) - 1)


def call_f32_to_u32(value: Any) -> Array:
    """As `call_f32_to_i32`."""
    return _saturated(value, 0, (1 << 32) - 1)


def call_isEven(value: Any) -> Array:
    """Of a whole number."""
    return np.fmod(value, 2.0) == 0


def _never(value: Any) -> Array:
    return np.zeros_like(np.asarray(value), bool)


SIMPLE: dict[str, Any] = {
    "isNAN": np.isnan,
    "isQuietNAN": np.isnan,
    "isSignalNAN": _never,
    "cvtToQuietNAN": lambda value: value,
    "sign": np.signbit,
    "abs": np.abs,
    "trunc": np.trunc,
    "floor": np.floor,
    "fract": lambda value: value - np.floor(value),
    "sqrt": np.sqrt,
    "log2": np.log2,
    "f32_to_f16": lambda value: value.astype(np.float16),
    "f16_to_f32": lambda value: value.astype(np.float32),
    "i32_to_f32": lambda value: value.astype(np.float32),
    "u32_to_f32": lambda value: value.astype(np.float32),
    "v_max_f32": np.fmax,
    "v_min_f32": np.fmin,
    "v_max_i32": np.maximum,
    "v_min_i32": np.minimum,
    "v_max_u32": np.maximum,
    "v_min_u32": np.minimum,
    "v_max3_i32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
}


def namespace() -> dict[str, Any]:
    """Every name that a translated function may use."""
    found = dict(globals()) | {f"call_{name}": function for name, function in SIMPLE.items()}
    for kind, dtype in DTYPES.items():
        found[f"as_{kind}"] = lambda value, dtype=dtype: taken(value, dtype)
    for width in (1, 4, 24):
        found[f"as_u{width}"] = lambda value, width=width: narrow(value, width, signed=False)
        found[f"as_i{width}"] = lambda value, width=width: narrow(value, width, signed=True)
    return found
