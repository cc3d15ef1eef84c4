"""Values that go from lane to lane: DPP, and reading and writing one lane."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine.operands import VECTOR, Reader, keys, source
from tests.backends.rocm_emulator.machine.state import LANES, Waves

Array = NDArray[Any]
ROW = 16
NOWHERE = -1


def origin(control: int) -> Array:
    """For each lane the one that DPP reads, or NOWHERE.

    Raises:
        UnknownInstructionError: the control is none of gfx9's.
    """
    lane = np.arange(LANES)
    row, place = lane // ROW * ROW, lane % ROW
    if control < 0x100:  # quad_perm
        return lane // 4 * 4 + np.array([control >> 2 * step & 3 for step in range(4)])[lane % 4]
    by = control & 15
    moved = {0x10: place + by, 0x11: place - by}
    if control >> 4 in moved and by:  # row_shl, row_shr
        there = moved[control >> 4]
        return np.where((there >= 0) & (there < ROW), row + there, NOWHERE)
    if control >> 4 == 0x12 and by:  # row_ror
        return row + (place - by) % ROW
    if control >> 4 == 0x15:  # row_newbcast
        return row + by
    told = {
        0x130: np.where(lane < 63, lane + 1, NOWHERE),  # wave_shl
        0x134: (lane + 1) % LANES,  # wave_rol
        0x138: lane - 1,  # wave_shr
        0x13C: (lane - 1) % LANES,  # wave_ror
        0x140: row + 15 - place,  # row_mirror
        0x141: lane // 8 * 8 + 7 - lane % 8,  # row_half_mirror
        0x142: np.where(lane >= ROW, row - 1, NOWHERE),  # row_bcast:15
        0x143: np.where(lane >= 32, 31, NOWHERE),  # row_bcast:31
    }
    if control not in told:
        raise UnknownInstructionError(f"DPP {control:#x}")
    return told[control]


def dpp(instruction: Instruction, read: Reader) -> tuple[Reader, Any]:
    """The first operand of a DPP instruction, and the lanes that it writes: a function, or None for all of them."""
    there = origin(instruction.number("dpp"))
    inside = there != NOWHERE
    lane = np.arange(LANES)
    rows = (instruction.number("row_mask") >> lane // ROW & 1).astype(bool)
    banks = (instruction.number("bank_mask") >> lane % ROW // 4 & 1).astype(bool)
    bounded = bool(instruction.number("bc"))
    index = np.where(inside, there, 0)

    def valid(waves: Waves) -> Array:
        """Lanes whose value comes from a lane that executes."""
        return inside & waves.exec[:, index]

    def moved(waves: Waves) -> Array:
        return np.where(valid(waves), read(waves)[:, index], np.uint32(0))

    def writes(waves: Waves) -> Array:
        return (rows & banks) if bounded else (rows & banks) & valid(waves)

    return moved, None if bounded and (rows & banks).all() else writes


def read_first_lane(instruction: Instruction) -> tuple[Any, frozenset[int]]:
    """`v_readfirstlane_b32`: of the lowest lane that executes; of lane 0 where none does."""
    read, touched = source(instruction, "src0")
    target = instruction.number("vdst")

    def run(waves: Waves) -> None:
        value = np.broadcast_to(read(waves), (waves.count, LANES))
        waves.put(target, value[np.arange(waves.count), waves.exec.argmax(1)])

    return run, touched | keys(target, 1)


def read_lane(instruction: Instruction) -> tuple[Any, frozenset[int]]:
    """`v_readlane_b32`: of a lane that a scalar names, whether it executes or not."""
    read, touched = source(instruction, "src0")
    select, more = source(instruction, "src1")
    target = instruction.number("vdst")

    def run(waves: Waves) -> None:
        lane = np.broadcast_to(select(waves), (waves.count, 1))[:, 0] & np.uint32(63)
        waves.put(target, read(waves)[np.arange(waves.count), lane])

    return run, touched | more | keys(target, 1)


def write_lane(instruction: Instruction) -> tuple[Any, frozenset[int]]:
    """`v_writelane_b32`: into a lane that a scalar names, whether it executes or not."""
    read, touched = source(instruction, "src0")
    select, more = source(instruction, "src1")
    target = instruction.number("vdst")

    def run(waves: Waves) -> None:
        who = np.flatnonzero(waves.active)
        lane = np.broadcast_to(select(waves), (waves.count, 1))[who, 0] & np.uint32(63)
        waves.vector[target, who, lane] = np.broadcast_to(read(waves), (waves.count, 1))[who, 0]

    return run, touched | more | keys(VECTOR + target, 1)
