"""Matrix instructions, and what moves between vector registers and accumulators.

Where an element of a matrix lies is the CDNA 3 manual's, "Matrix Arithmetic Instructions". The sum over the shared axis
is made in float64 and rounded once, where the device rounds on the way.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine.alu import Made
from tests.backends.rocm_emulator.machine.operands import VECTOR, keys, located
from tests.backends.rocm_emulator.machine.state import LANES, Waves

Array = NDArray[Any]
NAME = re.compile(r"v_mfma_f32_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<type>f32|f16|bf16)(?:_1k)?")
WIDTHS = {"f32": 32, "f16": 16, "bf16": 16}


def product(one: Instruction, accumulators: int) -> Made:
    """`v_mfma`: D = A B + C, a product a wave.

    Raises:
        UnknownInstructionError: of a type, or with a broadcast, that is not modelled.
    """
    match = NAME.fullmatch(one.name)
    if match is None or one.number("cbsz") or one.number("abid") or one.number("blgp") or match["m"] != match["n"]:
        raise UnknownInstructionError(f"{one} is not modelled")
    m, k = int(match["m"]), int(match["k"])
    each = k * m // LANES  # elements of A, and of B, that a lane holds: neighbours along the shared axis
    words, results = each * WIDTHS[match["type"]] // 32, m * m // LANES
    a, b = (
        _register(one, name, one.number("acc") >> place & 1, accumulators)
        for place, name in enumerate(("src0", "src1"))
    )
    target = one.number("vdst") + (accumulators if one.number("acc_cd") else 0)
    begin, added = _addend(one, accumulators, results)
    rows, columns = _places(m, results)

    def run(waves: Waves) -> None:
        if not waves.exec[waves.active].all():
            raise UnknownInstructionError(f"{one} with lanes that do not execute")
        left, right = (_matrix(waves, register, words, match["type"], m) for register in (a, b))
        summed = left @ right.transpose(0, 2, 1) + _gathered(waves, begin, results, m, rows, columns)
        found = summed.astype(np.float32)[:, rows, columns].view(np.uint32)  # [waves, results, lanes]
        for place in range(results):
            waves.put_vector(target + place, found[:, place])

    touched = keys(VECTOR + a, words) | keys(VECTOR + b, words) | keys(VECTOR + target, results) | added
    return run, touched


def _register(one: Instruction, name: str, accumulator: int, accumulators: int) -> int:
    offset = getattr(one.raw, name).offset
    if offset < VECTOR:
        raise UnknownInstructionError(f"{one} multiplies a constant")
    return int(offset) - VECTOR + (accumulators if accumulator else 0)


def _addend(one: Instruction, accumulators: int, results: int) -> tuple[Any, frozenset[int]]:
    """C: a register, or a function that reads a constant."""
    offset = one.raw.src2.offset
    if offset >= VECTOR:
        begin = offset - VECTOR + (accumulators if one.number("acc_cd") else 0)
        return begin, keys(VECTOR + begin, results)
    return located(one, offset, 32, "F32")[0], frozenset()


def _places(m: int, results: int) -> tuple[Array, Array]:
    """The row and the column of D that each result of each lane holds: four rows side by side, then the next lanes'."""
    lane, place = np.arange(LANES)[None, :], np.arange(results)[:, None]
    rows = place // 4 * (4 * LANES // m) + lane // m * 4 + place % 4
    return rows, np.broadcast_to(lane % m, rows.shape)


def _matrix(waves: Waves, register: int, words: int, kind: str, m: int) -> Array:
    """[waves, m, k] float64: a lane holds a row's neighbours along k, the next m lanes the next of them."""
    bits = np.stack([waves.vector[register + word] for word in range(words)], -1)
    if kind == "f32":
        values = bits.view(np.float32)
    elif kind == "f16":
        values = bits.view(np.float16)
    else:
        values = (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    split = values.reshape(waves.count, LANES // m, m, -1).transpose(0, 2, 1, 3)
    return split.reshape(waves.count, m, -1).astype(np.float64)


def _gathered(waves: Waves, begin: Any, results: int, m: int, rows: Array, columns: Array) -> Array:
    if callable(begin):
        return begin(waves).view(np.float32).astype(np.float64)[:, :, None]
    matrix = np.empty((waves.count, m, m), np.float64)
    matrix[:, rows, columns] = waves.vector[begin : begin + results].view(np.float32).transpose(1, 0, 2)
    return matrix


def read_accumulator(one: Instruction, accumulators: int) -> Made:
    """`v_accvgpr_read_b32`."""
    source, target = accumulators + one.raw.src0.offset - VECTOR, one.number("vdst")
    touched = keys(VECTOR + source, 1) | keys(VECTOR + target, 1)
    return (lambda waves: waves.put_vector(target, waves.vector[source])), touched


def write_accumulator(one: Instruction, accumulators: int) -> Made:
    """`v_accvgpr_write_b32`."""
    read, touched = located(one, one.raw.src0.offset, 32, "B32")
    target = accumulators + one.number("vdst")
    return (lambda waves: waves.put_vector(target, read(waves))), touched | keys(VECTOR + target, 1)


def move_pair(one: Instruction) -> Made:
    """`v_pk_mov_b32`: a word of each of two pairs."""
    words = []
    touched = keys(VECTOR + one.number("vdst"), 2)
    for place, name in enumerate(("src0", "src1")):
        offset = getattr(one.raw, name).offset + (one.number("opsel") >> place & 1)
        read, more = located(one, offset, 32, "B32")
        words.append(read)
        touched |= more
    target = one.number("vdst")

    def run(waves: Waves) -> None:
        low, high = (np.broadcast_to(read(waves), (waves.count, LANES)).copy() for read in words)
        waves.put_vector(target, low)
        waves.put_vector(target + 1, high)

    return run, touched


def shift_halves(one: Instruction) -> Made:
    """`v_pk_lshlrev_b16`: each half of a word to the left by a half of another."""
    select, high = one.number("opsel"), one.number("opsel_hi")
    touched, readers = keys(VECTOR + one.number("vdst"), 1), []
    for name in ("src0", "src1"):
        read, more = located(one, getattr(one.raw, name).offset, 32, "B32")
        touched |= more
        readers.append(read)
    target = one.number("vdst")

    def half(word: Array, place: int, which: int) -> Array:
        return (word >> np.uint32(16 * (which >> place & 1))) & np.uint32(0xFFFF)

    def run(waves: Waves) -> None:
        by, word = (read(waves) for read in readers)
        low, top = (half(word, 1, which) << (half(by, 0, which) & np.uint32(15)) for which in (select, high))
        found = (low & np.uint32(0xFFFF)) | (top << np.uint32(16))
        waves.put_vector(target, np.broadcast_to(found, (waves.count, LANES)).copy())

    return run, touched


def mixed(one: Instruction) -> Made:
    """`v_fma_mix_f32`, `_mixlo_f16`, `_mixhi_f16`: of float32 or halves of registers, to float32 or one half of one."""
    if one.number("clmp"):
        raise UnknownInstructionError(f"{one} is clamped")
    select, half = one.number("opsel"), one.number("opsel_hi") | one.number("opsel_hi2") << 2
    touched, readers = keys(VECTOR + one.number("vdst"), 1), []
    for place, name in enumerate(("src0", "src1", "src2")):
        read, more = located(one, getattr(one.raw, name).offset, 32, "F16" if half >> place & 1 else "F32")
        touched |= more
        signs = (bool(one.number("neg") >> place & 1), bool(one.number("neg_hi") >> place & 1))
        readers.append(_mixed_operand(read, half >> place & 1, select >> place & 1, *signs))
    target = one.number("vdst")
    half_at = {"v_fma_mix_f32": None, "v_fma_mixlo_f16": 0, "v_fma_mixhi_f16": 16}[one.name]

    def run(waves: Waves) -> None:
        a, b, c = (read(waves) for read in readers)
        found = (a * b + c).astype(np.float32)
        if half_at is None:
            waves.put_vector(target, found.view(np.uint32))
            return
        kept = waves.vector[target] & np.uint32(0xFFFF_0000 >> half_at)
        rounded = found.astype(np.float16).view(np.uint16).astype(np.uint32)
        waves.put_vector(target, kept | (rounded << np.uint32(half_at)))

    return run, touched


def _mixed_operand(read: Any, half: int, high: int, negate: bool, absolute: bool) -> Any:
    def value(waves: Waves) -> Array:
        bits = read(waves)
        if half:
            found = (bits >> np.uint32(16 * high)).astype(np.uint16).view(np.float16).astype(np.float64)
        else:
            found = bits.view(np.float32).astype(np.float64)
        found = np.abs(found) if absolute else found
        return -found if negate else found

    return value
