"""Instructions to blocks of steps: each block is entered at its first instruction and left at its last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine import access, alu, lanes, matrix
from tests.backends.rocm_emulator.machine.alu import Made
from tests.backends.rocm_emulator.machine.operands import SCALAR_KEY
from tests.backends.rocm_emulator.machine.state import EXEC, VCC, Waves

NOTHING = ("s_nop", "s_setprio", "s_sleep", "s_inst_prefetch", "s_icache_inv", "buffer_wbl2", "buffer_inv")
JUMPS = ("s_branch", "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_vccz", "s_cbranch_vccnz", "s_cbranch_execz",
         "s_cbranch_execnz")  # fmt: skip
# One bit of MODE, the 23rd: conversions to float16 and float8 keep to the largest number. Nothing here converts so.
OVERFLOW = 1 | 23 << 6
ENDS = (*JUMPS, "s_barrier", "s_endpgm")
MEMORY = ("DS", "GLOBAL", "FLAT", "SCRATCH", "MUBUF", "SMEM")


@dataclass(frozen=True)
class Block:
    """Steps without a jump between.

    Attributes:
        steps: each with the registers that it touches and its instruction.
        last: the instruction that ends the block, where it jumps, waits for others or ends the program.
        after: the address behind it.
        target: where it jumps to.
    """

    steps: tuple[tuple[Callable[[Waves], None], frozenset[int], Instruction], ...]
    last: Instruction | None
    after: int
    target: int
    size: int


def blocks(instructions: list[Instruction], accumulators: int) -> dict[int, Block]:
    """The blocks of a program, by address.

    Raises:
        UnknownInstructionError: one of its instructions is not modelled.
    """
    starts = {instructions[0].address}
    for one in instructions:
        if one.name in ENDS:
            starts.add(one.address + one.size)
            if one.name in JUMPS:
                starts.add(destination(one))
    found: dict[int, Block] = {}
    held: list[Instruction] = []
    for place, one in enumerate(instructions):
        held.append(one)
        after = one.address + one.size
        if one.name in ENDS or after in starts or place == len(instructions) - 1:
            found[held[0].address] = _block(held, accumulators)
            held = []
    return found


def destination(jump: Instruction) -> int:
    """Where it goes: so many words behind it."""
    words = jump.number("simm16")
    return jump.address + jump.size + 4 * (words - (1 << 16) if words >> 15 else words)


def _block(held: list[Instruction], accumulators: int) -> Block:
    last = held[-1] if held[-1].name in ENDS else None
    steps = []
    for one in held if last is None else held[:-1]:
        if one.name not in NOTHING:
            run, touched = step(one, accumulators)
            steps.append((run, touched, one))
    target = destination(held[-1]) if held[-1].name in JUMPS else 0
    return Block(tuple(steps), last, held[-1].address + held[-1].size, target, len(held))


def step(one: Instruction, accumulators: int) -> Made:
    """What one instruction does, that does not jump."""
    if one.name == "s_waitcnt":
        return _wait(one), frozenset()
    if one.name == "s_setreg_imm32_b32" and one.number("simm16") == OVERFLOW:
        return (lambda waves: None), frozenset()
    if one.name in SPECIAL:
        made: Made = SPECIAL[one.name](one)
        return made
    if one.name in ACCUMULATING:
        return ACCUMULATING[one.name](one, accumulators)
    if one.encoding == "VOP3P_MFMA":
        return matrix.product(one, accumulators)
    if one.encoding in MEMORY:
        return access.made(one, accumulators)
    if one.encoding == "SOPP":
        raise UnknownInstructionError(f"{one} is not modelled")
    return alu.made(one)


SPECIAL: dict[str, Any] = {
    "v_readfirstlane_b32": lanes.read_first_lane,
    "v_readlane_b32": lanes.read_lane,
    "v_writelane_b32": lanes.write_lane,
    "ds_bpermute_b32": access.permute,
    "v_pk_mov_b32": matrix.move_pair,
    "v_pk_lshlrev_b16": matrix.shift_halves,
    "v_fma_mix_f32": matrix.mixed,
    "v_fma_mixlo_f16": matrix.mixed,
    "v_fma_mixhi_f16": matrix.mixed,
}
ACCUMULATING = {
    "v_accvgpr_read_b32": matrix.read_accumulator,
    "v_accvgpr_write_b32": matrix.write_accumulator,
}


def _wait(one: Instruction) -> Callable[[Waves], None]:
    """The counters of gfx9: vector memory in bits 3:0 and 15:14, local memory and scalar loads in 11:8."""
    word = one.number("simm16")
    vector, scalar = word & 15 | word >> 14 << 4, word >> 8 & 15
    return lambda waves: waves.waits.wait(vector, scalar)


JUMPS_IF: dict[str, Callable[[Waves], Any]] = {
    "s_branch": lambda waves: waves.active,
    "s_cbranch_scc0": lambda waves: ~waves.scc,
    "s_cbranch_scc1": lambda waves: waves.scc,
    "s_cbranch_vccz": lambda waves: waves.pair(VCC) == 0,
    "s_cbranch_vccnz": lambda waves: waves.pair(VCC) != 0,
    "s_cbranch_execz": lambda waves: waves.pair(EXEC) == 0,
    "s_cbranch_execnz": lambda waves: waves.pair(EXEC) != 0,
}
READ_BY_JUMPS = {
    name: frozenset({VCC + SCALAR_KEY, VCC + 1 + SCALAR_KEY}) for name in ("s_cbranch_vccz", "s_cbranch_vccnz")
}
