"""Instructions that load and store: global, buffer, scratch and local memory, scalar loads, and lanes through LDS."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.rocm_emulator.isa.decode import Instruction, UnknownInstructionError
from tests.backends.rocm_emulator.machine.alu import Made, Step
from tests.backends.rocm_emulator.machine.faults import MemoryFault
from tests.backends.rocm_emulator.machine.operands import VECTOR, keys
from tests.backends.rocm_emulator.machine.state import LANES, Waves

Array = NDArray[Any]
Addresses = Callable[[Waves], Array]
OFF = 0x7F  # no scalar address, on gfx9
SIZES = {
    "ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12,
    "dwordx4": 16, "dwordx8": 32, "dwordx16": 64, "b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4,
    "b64": 8, "b96": 12, "b128": 16,
}  # fmt: skip
SIGNED = ("sbyte", "sshort", "i8", "i16")
NAME = re.compile(
    r"(?P<kind>global|buffer|scratch|flat|ds|s)"
    r"_(?P<does>load|store|read2st64|read2|read|write2st64|write2|write)"
    r"_(?P<what>[a-z0-9]+)(?P<half>_d16_hi)?"
)


def made(instruction: Instruction, accumulators: int) -> Made:
    """What an access does, and the registers that it touches.

    Args:
        accumulators: the vector register with which accumulators begin.

    Raises:
        UnknownInstructionError: it is an atomic one, or another that is not modelled.
    """
    match = NAME.fullmatch(instruction.name)
    if match is None or match["what"] not in SIZES or (match["half"] and match["does"] in {"load", "read"}):
        raise UnknownInstructionError(f"{instruction} is not modelled")
    size, signed = SIZES[match["what"]], match["what"] in SIGNED
    if match["kind"] == "s":
        return _scalar_load(instruction, size)
    if match["kind"] == "ds":
        return _local(instruction, match["does"], size, signed, accumulators, 16 if match["half"] else 0)
    address = {"global": _global, "buffer": _buffer, "scratch": _scratch}[match["kind"]]
    if instruction.encoding == "FLAT":
        raise UnknownInstructionError(f"{instruction}: flat addresses are not modelled")
    places, touched, shown = address(instruction)
    field = "vdata" if instruction.has("vdata") else "vdst" if match["does"] == "load" else "data"
    data = instruction.number(field) + (accumulators if instruction.number("acc") else 0)
    words = (size + 3) // 4
    space = _space(match["kind"])
    if match["does"] == "load":  # what it fills may be under way already: loads finish in order
        run = _loading(places, shown, space, data, size, signed)
    else:
        touched |= keys(VECTOR + data, words)
        run = _storing(places, shown, space, data, size, 16 if match["half"] else 0)
    return run, touched


def _space(kind: str) -> Callable[[Waves], Any]:
    return (lambda waves: Private(waves)) if kind == "scratch" else (lambda waves: waves.memory)


class Private:
    """Each lane's own bytes, addressed by wave, lane and offset in one number."""

    def __init__(self, waves: Waves) -> None:
        self.bytes = waves.private

    def _places(self, addresses: Array, size: int) -> tuple[Array, ...]:
        offset = (addresses & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        if ((offset + size) > self.bytes.shape[2]).any():
            raise MemoryFault(
                f"{size} private bytes at {int(offset.max()):#x}, past the {self.bytes.shape[2]} of a lane"
            )
        lane = (addresses >> np.uint64(32)).astype(np.int64)
        return (lane // LANES)[:, None], (lane % LANES)[:, None], offset[:, None] + np.arange(size)

    def load(self, addresses: Array, size: int) -> Array:
        """As `Memory.load`."""
        found = np.zeros((len(addresses), (size + 3) // 4 * 4), np.uint8)
        found[:, :size] = self.bytes[self._places(addresses, size)]
        return found.view(np.uint32)

    def store(self, addresses: Array, data: Array, size: int) -> None:
        """As `Memory.store`."""
        self.bytes[self._places(addresses, size)] = np.ascontiguousarray(data).view(np.uint8)[:, :size]


def _loading(places: Addresses, shown: Any, space: Any, data: int, size: int, signed: bool) -> Step:
    fills = frozenset(range(data, data + (size + 3) // 4))

    def run(waves: Waves) -> None:
        lanes = waves.exec
        inside = lanes if shown is None else lanes & shown(waves)
        found = space(waves).load(np.broadcast_to(places(waves), lanes.shape)[inside], size)
        found = _extended(found, size) if signed else found
        for word in range(found.shape[1]):
            register = waves.vector[data + word]
            if shown is not None:
                register[lanes] = 0  # what lies outside of a buffer reads as zeros
            register[inside] = found[:, word]
        waves.waits.issue_vector(fills)

    return run


def _storing(places: Addresses, shown: Any, space: Any, data: int, size: int, shift: int) -> Step:
    """`shift`: of the bits of a register that are stored, where they are its high ones."""
    words = (size + 3) // 4

    def run(waves: Waves) -> None:
        inside = waves.exec if shown is None else waves.exec & shown(waves)
        values = np.stack([waves.vector[data + word][inside] >> np.uint32(shift) for word in range(words)], 1)
        space(waves).store(np.broadcast_to(places(waves), inside.shape)[inside], values, size)
        waves.waits.issue_vector(frozenset())

    return run


def _extended(value: Array, size: int) -> Array:
    """A number of so many bytes with its sign in all of a word."""
    up = np.int32(32 - 8 * size)
    return ((np.ascontiguousarray(value).view(np.int32) << up) >> up).view(np.uint32)


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def _global(one: Instruction) -> tuple[Addresses, frozenset[int], None]:
    """A pair of vector registers, or a pair of scalar ones and an offset of 32 bits in a vector register."""
    offset = np.uint64(_signed(one.number("offset"), 13) & ((1 << 64) - 1))
    vector, scalar = one.number("addr"), one.number("saddr")
    if scalar == OFF:

        def wide(waves: Waves) -> Array:
            low, high = waves.vector[vector], waves.vector[vector + 1]
            return (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))) + offset

        return wide, keys(VECTOR + vector, 2), None

    def based(waves: Waves) -> Array:
        return waves.pair(scalar)[:, None] + waves.vector[vector].astype(np.uint64) + offset

    return based, keys(VECTOR + vector, 1) | keys(scalar, 2), None


def _buffer(one: Instruction) -> tuple[Addresses, frozenset[int], Addresses]:
    """A base, and an offset that is held against the buffer's size: outside, loads read zeros and stores do nothing."""
    if one.number("idxen") or one.number("lds"):
        raise UnknownInstructionError(f"{one} addresses a buffer in a way that is not modelled")
    resource, vector = one.raw.srsrc.offset, one.number("vaddr") if one.number("offen") else None
    extra, fixed = one.raw.soffset.offset, one.number("offset")
    size = SIZES[one.name.rpartition("_")[2]]
    if extra >= 128 and extra != 128:
        raise UnknownInstructionError(f"{one} adds a constant to its address")
    touched = keys(resource, 4)
    touched |= keys(extra, 1) if extra < 128 else frozenset()
    touched |= keys(VECTOR + vector, 1) if vector is not None else frozenset()

    def within(waves: Waves) -> Array:
        """In 32 bits, where a negative offset comes back: LLVM moves constants into the code and relies on it."""
        own = waves.vector[vector] if vector is not None else np.zeros((1, 1), np.uint32)
        return (own + np.uint32(fixed)).astype(np.uint64)

    def added(waves: Waves) -> Array:
        return waves.scalar[extra][:, None].astype(np.uint64) if extra < 128 else np.zeros((1, 1), np.uint64)

    def places(waves: Waves) -> Array:
        base = waves.pair(resource)[:, None] & np.uint64((1 << 48) - 1)
        return base + added(waves) + within(waves)

    def shown(waves: Waves) -> Array:
        strides = waves.scalar[resource + 1][waves.active] >> np.uint32(16) & np.uint32(0x3FFF)
        if strides.any():
            raise UnknownInstructionError(f"{one} reads a buffer with a stride")
        return within(waves) + added(waves) + np.uint64(size) <= waves.scalar[resource + 2][:, None].astype(np.uint64)

    return places, touched, shown


def _scratch(one: Instruction) -> tuple[Addresses, frozenset[int], None]:
    """A lane's own memory: an offset in the code, one in a scalar or a vector register, or both."""
    offset = _signed(one.number("offset"), 13)
    scalar, vector = one.number("saddr"), one.number("addr") if one.number("sve") else None
    touched = keys(VECTOR + vector, 1) if vector is not None else frozenset()
    touched |= keys(scalar, 1) if scalar != OFF else frozenset()

    def places(waves: Waves) -> Array:
        at = np.full((waves.count, LANES), offset, np.int64)
        if vector is not None:
            at = at + waves.vector[vector]
        if scalar != OFF:
            at = at + waves.scalar[scalar][:, None]
        own = np.arange(waves.count * LANES, dtype=np.uint64).reshape(-1, LANES) << np.uint64(32)
        return own | (at.astype(np.uint64) & np.uint64(0xFFFF_FFFF))

    return places, touched, None


def _scalar_load(one: Instruction, size: int) -> Made:
    """Words from an address in scalar registers."""
    base, target = one.raw.sbase.offset, one.raw.sdata.offset
    offset = np.uint64((_signed(one.number("offset"), 21) if one.number("imm") else 0) & ((1 << 64) - 1))
    extra = one.raw.soffset.offset if one.number("soffset_en") else None
    if extra is None and not one.number("imm"):
        raise UnknownInstructionError(f"{one} has its offset in a register")
    fills = keys(target, size // 4)

    def run(waves: Waves) -> None:
        address = waves.pair(base) + offset
        if extra is not None:
            address = address + waves.scalar[extra]
        who = waves.active
        found = waves.memory.load(address[who] & ~np.uint64(3), size)
        for word in range(size // 4):
            waves.scalar[target + word][who] = found[:, word]
        waves.waits.issue_local(fills, unordered=True)

    touched = keys(base, 2) | (keys(extra, 1) if extra is not None else frozenset())
    return run, touched


def _local(one: Instruction, does: str, size: int, signed: bool, accumulators: int, begin: int) -> Made:
    """One place of local memory, or two of them a multiple of their size apart; `begin` is the first bit written."""
    shift = accumulators if one.number("acc") else 0
    first, second = one.number("offset0"), one.number("offset1")
    unit = size * (64 if "st64" in does else 1)
    offsets = (first * unit, second * unit) if "2" in does else (first | second << 8,)
    touched = keys(VECTOR + one.number("addr"), 1)
    if does.startswith("read"):
        return _local_read(one.number("addr"), offsets, one.number("vdst") + shift, size, signed), touched
    sources = [one.number(name) + shift for name in ("data0", "data1")[: len(offsets)]]
    for source in sources:
        touched |= keys(VECTOR + source, (size + 3) // 4)
    return _local_write(one.number("addr"), offsets, sources, size, begin), touched


def _local_places(waves: Waves, address: int, offset: int, size: int) -> Array:
    """Where the lanes that execute read or write, each workgroup in its own part."""
    at = (waves.vector[address] + np.uint32(offset))[waves.exec]
    if (at.astype(np.int64) + size > waves.local.size).any():
        raise MemoryFault(f"{size} local bytes at {int(at.max()):#x}, past the {waves.local.size} of a workgroup")
    places: Array = at + waves.local_base[waves.exec]
    return places


def _local_read(address: int, offsets: tuple[int, ...], target: int, size: int, signed: bool) -> Step:
    fills = frozenset(range(target, target + (size + 3) // 4 * len(offsets)))

    def read(waves: Waves) -> None:
        lanes, who = waves.exec, waves.number[waves.exec]
        found = []
        for offset in offsets:
            at = _local_places(waves, address, offset, size)
            waves.local.reads(at, size, who)
            found.append(waves.local.load(at, size))
        for word, value in enumerate(np.concatenate(found, 1).T):
            waves.vector[target + word][lanes] = _extended(value, size) if signed else value
        waves.waits.issue_local(fills)

    return read


def _local_write(address: int, offsets: tuple[int, ...], sources: list[int], size: int, begin: int) -> Step:
    words = (size + 3) // 4
    used = np.uint32(0xFFFF_FFFF if size % 4 == 0 else (1 << 8 * size) - 1)

    def write(waves: Waves) -> None:
        lanes, who = waves.exec, waves.number[waves.exec]
        for source, offset in zip(sources, offsets, strict=True):
            at = _local_places(waves, address, offset, size)
            data = np.stack([waves.vector[source + word][lanes] >> np.uint32(begin) for word in range(words)], 1)
            waves.local.writes(at, size, who, data & used)
            waves.local.store(at, data, size)
        waves.waits.issue_local(frozenset())

    return write


def permute(one: Instruction) -> Made:
    """`ds_bpermute_b32`: each lane reads the word of the lane that it names, zero where that one does not execute."""
    address, data, target = one.number("addr"), one.number("data0"), one.number("vdst")
    offset = np.uint32(one.number("offset0") | one.number("offset1") << 8)

    def run(waves: Waves) -> None:
        lane = ((waves.vector[address] + offset) >> np.uint32(2)) & np.uint32(63)
        row = np.arange(waves.count)[:, None]
        found = np.where(waves.exec[row, lane], waves.vector[data][row, lane], np.uint32(0))
        waves.put_vector(target, found)
        waves.waits.issue_local(frozenset((target,)))

    return run, keys(VECTOR + address, 1) | keys(VECTOR + data, 1)
