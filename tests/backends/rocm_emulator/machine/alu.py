"""Instructions that compute in registers: their operands read, their function called, its results put where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa import semantics
from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine import lanes, operands
from tests.backends.rocm_emulator.machine.operands import SCALAR_KEY, VECTOR, Reader, keys, source
from tests.backends.rocm_emulator.machine.state import EXEC, LANES, VCC, Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]
Made = tuple[Step, frozenset[int]]
Writer = Callable[[Waves, Array], None]
# By encoding, the fields that hold S0, S1 and S2.
SOURCES = {
    "SOP1": ("ssrc0",),
    "SOP2": ("ssrc0", "ssrc1"),
    "SOPC": ("ssrc0", "ssrc1"),
    "VOP1": ("src0",),
    "VOP2": ("src0", "vsrc1"),
    "VOPC": ("src0", "vsrc1"),
    "VOP3": ("src0", "src1", "src2"),
    "VOP3SD": ("src0", "src1", "src2"),
    "VOP3P": ("src0", "src1", "src2"),
}
MASKED = ("v_cndmask_b32", "v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")  # their third operand is a mask
SCALAR_READERS: dict[str, Reader] = {
    "SCC": lambda waves: waves.scc[:, None],
    "EXEC": lambda waves: waves.pair(EXEC)[:, None],
    "VCC": lambda waves: waves.pair(VCC)[:, None],
}


def made(instruction: Instruction) -> Made:
    """What an instruction does, and the registers that it touches.

    Raises:
        UnknownInstructionError: it, or something of its encoding, is not modelled.
    """
    function = semantics.of(instruction)
    inputs = _Inputs(instruction)
    readers = [inputs.of(name) for name in function.inputs]
    writers = [_writer(instruction, name, inputs) for name in function.outputs]
    call = function.call

    def run(waves: Waves) -> None:
        results = call(*[read(waves) for read in readers])
        for write, result in zip(writers, results, strict=True):
            write(waves, result)

    return run, inputs.touched | _written(instruction, function.outputs)


class _Inputs:
    """Readers of what a function takes, by name."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.base = instruction.encoding.partition("_")[0]
        self.touched: frozenset[int] = frozenset()
        self.lanes_written: Any = None

    def of(self, name: str) -> Reader:
        if name in ("S0", "S1", "S2"):
            return self._source(int(name[1]))
        if name == "VCC_lane":
            return self._mask()
        if name in SCALAR_READERS:
            if name != "SCC":
                self.touched |= keys(EXEC if name == "EXEC" else VCC, 2)
            return SCALAR_READERS[name]
        if name == "D0":
            return self._old()
        if name == "SIMM32":
            literal = np.full((1, 1), self.instruction.raw._literal, np.uint32)
            return lambda waves: literal
        raise UnknownInstructionError(f"{self.instruction} takes {name}, which is not modelled")

    def _source(self, place: int) -> Reader:
        one = self.instruction
        if self.base == "SOPK":
            return self._short(place)
        field = SOURCES[self.base][place]
        if place == 0 and one.has("vsrc0"):
            field = "vsrc0"
        read, touched = self._located(place, field)
        self.touched |= touched
        width, kind = one.widths.get(field, 32), one.formats.get(field, "")
        if one.has("src0_sel"):
            return self._part(read, place, field)
        if one.has("dpp"):
            negate, absolute = bool(one.number(f"src{place}_neg")), bool(one.number(f"src{place}_abs"))
            read = operands.modified(read, "F32", False, negate, absolute)
            if place == 0:
                read, self.lanes_written = lanes.dpp(one, read)
            return read
        if self.base == "VOP3P":
            return self._packed(read, place, field)
        if one.has("neg"):
            negate = bool(one.number("neg") >> place & 1)
            absolute = one.has("abs") and bool(one.number("abs") >> place & 1)
            return operands.modified(read, kind, width == 64, negate, absolute)
        return read

    def _located(self, place: int, field: str) -> tuple[Reader, frozenset[int]]:
        """Where it lies; SDWA says beside whether that is a scalar register."""
        one = self.instruction
        if one.has("src0_sel") and one.number(f"s{place}"):
            return operands.located(one, one.number(field), 32, "B32")
        return source(one, field)

    def _part(self, read: Reader, place: int, field: str) -> Reader:
        """SDWA: some bytes of it, then its sign."""
        one = self.instruction
        signs = one.number(f"src{place}_neg"), one.number(f"src{place}_abs")
        kind = one.formats.get(field.removeprefix("v") if field == "vsrc0" else field, "")
        if any(signs) and kind != "F32":
            raise UnknownInstructionError(f"{one} changes the sign of part of a register")
        read = operands.part(read, one.number(f"src{place}_sel"), bool(one.number(f"src{place}_sext")))
        return operands.modified(read, "F32", False, *map(bool, signs))

    def _packed(self, read: Reader, place: int, field: str) -> Reader:
        """Two numbers side by side, each of which may be the other's and may be negated."""
        one = self.instruction
        if not one.name.startswith("v_pk_") or one.widths[field] != 64:
            raise UnknownInstructionError(f"{one} packs numbers in a way that is not modelled")
        high = one.number("opsel_hi") | one.number("opsel_hi2") << 2
        if getattr(one.raw, field).offset in range(128, VECTOR):
            number = operands.located(one, getattr(one.raw, field).offset, 32, "F32")[0]
            if high >> place & 1 or one.number("opsel") >> place & 1:
                raise UnknownInstructionError(f"{one} takes the second word of a constant")
            read = lambda waves: number(waves).astype(np.uint64)  # noqa: E731
        signs = one.number("neg"), one.number("neg_hi")
        low = (one.number("opsel") >> place & 1, bool(signs[0] >> place & 1))
        return operands.halves(read, low, (high >> place & 1, bool(signs[1] >> place & 1)))

    def _short(self, place: int) -> Reader:
        """SOPK: the number in the code, which the pseudocode calls S0, or S1 where it compares."""
        one = self.instruction
        if one.name.startswith("s_cmpk") and place == 0:
            read, touched = source(one, "sdst")
            self.touched |= touched
            return read
        number = np.full((1, 1), one.number("simm16"), np.uint32)
        return lambda waves: number

    def _mask(self) -> Reader:
        one = self.instruction
        register = VCC
        if one.encoding in ("VOP3", "VOP3SD") and one.name in MASKED:
            register = one.raw.src2.offset
        self.touched |= keys(register, 2)
        return lambda waves: waves.lanes(register)

    def _old(self) -> Reader:
        one = self.instruction
        field = "sdst" if self.base.startswith("S") else "vdst"
        read, touched = source(one, field)
        self.touched |= touched
        return read


def _writer(instruction: Instruction, name: str, inputs: _Inputs) -> Writer:
    """Where a result goes."""
    if name == "SCC":
        return _put_condition
    if name == "EXEC":
        return lambda waves, value: operands.put_scalar(waves, EXEC, value, wide=True)
    if name.endswith(" lane"):
        register = VCC
        if instruction.encoding in ("VOP3SD", "VOPC_SDWA_SDST"):
            register = instruction.raw.sdst.offset
        elif instruction.encoding == "VOP3_SDST":
            register = instruction.raw.vdst.offset
        if name == "EXEC lane" or (instruction.encoding == "VOPC_SDWA_SDST" and not instruction.number("sd")):
            register = EXEC if name == "EXEC lane" else VCC
        return lambda waves, value: waves.put_lanes(register, value)
    if name != "D0":
        raise UnknownInstructionError(f"{instruction} makes {name}, which is not modelled")
    if instruction.encoding.startswith("S"):
        register, wide = instruction.raw.sdst.offset, instruction.widths.get("sdst") == 64
        return lambda waves, value: operands.put_scalar(waves, register, value, wide)
    return _vector_writer(instruction, inputs)


def _vector_writer(instruction: Instruction, inputs: _Inputs) -> Writer:
    register, wide = instruction.raw.vdst.offset - VECTOR, instruction.widths["vdst"] == 64
    if instruction.has("opsel") and instruction.encoding == "VOP3" and instruction.number("opsel"):
        raise UnknownInstructionError(f"{instruction} selects halves, which is not modelled")
    if instruction.has("dst_sel") and instruction.number("dst_sel") != 6:
        raise UnknownInstructionError(f"{instruction} writes part of a register")
    if instruction.has("omod") and instruction.number("omod"):
        raise UnknownInstructionError(f"{instruction} scales its result, which is not modelled")
    clamp = _clamp(instruction) if instruction.has("clmp") and instruction.number("clmp") else None
    only = inputs.lanes_written

    def write(waves: Waves, value: Array) -> None:
        if clamp is not None:
            value = clamp(waves, value)
        if only is None:
            operands.put_vector(waves, register, value, wide)
            return
        bits = np.broadcast_to(operands.raw(value), (waves.count, LANES))
        np.copyto(waves.vector[register], bits, where=waves.exec & only(waves))

    return write


def _clamp(instruction: Instruction) -> Callable[[Waves, Array], Array]:
    """A float kept within 0 and 1; an unsigned difference that would be negative is 0."""
    if instruction.formats["vdst"] == "F32":
        return lambda waves, value: np.clip(np.nan_to_num(value), np.float32(0), np.float32(1))
    if instruction.name == "v_sub_u32":
        first, second = source(instruction, "src0")[0], source(instruction, "src1")[0]
        return lambda waves, value: np.where(first(waves) < second(waves), np.uint32(0), value)
    raise UnknownInstructionError(f"{instruction} is clamped, which is not modelled")


def _put_condition(waves: Waves, value: Array) -> None:
    told = np.broadcast_to(value[:, 0], (waves.count,))
    if waves.everyone:
        waves.scc[:] = told
    else:
        np.copyto(waves.scc, told, where=waves.active)


def _written(instruction: Instruction, outputs: tuple[str, ...]) -> frozenset[int]:
    """The registers that are written."""
    found = frozenset[int]()
    if "D0" in outputs:
        field = "sdst" if instruction.encoding.startswith("S") else "vdst"
        count = instruction.widths.get(field, 32) // 32
        found |= keys(getattr(instruction.raw, field).offset, max(1, count))
    if any(name in ("EXEC", "EXEC lane") for name in outputs):
        found |= keys(EXEC, 2)
    if any(name in ("VCC lane", "D0 lane") for name in outputs):
        found |= frozenset((VCC + SCALAR_KEY, VCC + 1 + SCALAR_KEY))
    return found
