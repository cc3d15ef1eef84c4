"""A code object as AMD's loader reads it: an ELF file with a kernel's machine code, its descriptor and its metadata.

The layout is that of LLVM's "User Guide for AMDGPU Backend", code object version 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NOTE, SYMBOLS = 7, 2  # section types
AMDGPU_METADATA = 32  # the type of the note that holds it
# User registers ahead of the kernel's preloaded arguments, by the bit of the descriptor's properties that asks for it.
USER_REGISTERS = (("private_buffer", 4), ("dispatch", 2), ("queue", 2), ("kernarg", 2), ("dispatch_id", 2),
                  ("flat_scratch", 2), ("private_size", 1))  # fmt: skip
PRELOADED_ENTRY = 256  # bytes of code that load by themselves what this firmware has preloaded


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, as the metadata lays it out in the kernarg segment."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class CodeObject:
    """One kernel.

    Attributes:
        code: of the whole text section, which lies at `address`.
        entry: the address of the kernel's first instruction; `end` that behind its last.
        local: bytes of LDS that the code asks for by itself; Triton asks for more when it launches.
        private: bytes of memory of its own that each lane has.
        user: the first scalar register of each thing that the hardware puts there.
        preload: arguments that it puts into registers besides: the first dword, and how many.
        groups: which of a workgroup's three numbers are put into scalar registers, behind the user's.
        accumulators: the vector register of the unified file with which accumulators begin.
        lanes: of a wave.
    """

    name: str
    code: bytes
    address: int
    entry: int
    end: int
    arguments: tuple[Argument, ...]
    kernarg: int
    local: int
    private: int
    user: dict[str, int]
    preload: tuple[int, int]
    groups: tuple[bool, bool, bool]
    registers: int
    accumulators: int
    lanes: int


def read(binary: bytes, name: str) -> CodeObject:
    """The kernel of that name.

    Raises:
        ValueError: the file is no code object, or holds no such kernel.
    """
    if binary[:4] != b"\x7fELF":
        raise ValueError("no ELF file: a code object begins with \\x7fELF")
    sections = _sections(binary)
    (text,) = [one for one in sections if one.name == ".text"]
    symbols = dict(_symbols(binary, sections))
    if f"{name}.kd" not in symbols:
        raise ValueError(f"no kernel {name!r}; its symbols are {', '.join(symbols)}")
    (at, _), (begin, size) = symbols[f"{name}.kd"], symbols[name]
    home = next(one for one in sections if one.address <= at < one.address + one.size)
    descriptor = binary[home.offset + at - home.address :][:64]
    local, private, kernarg = struct.unpack_from("<III", descriptor)
    (entry,) = struct.unpack_from("<q", descriptor, 16)
    third, _, second, properties, preload = struct.unpack_from("<IIIHH", descriptor, 44)
    length, first = preload & 0x7F, preload >> 7
    user, used = _user(properties)
    (kernel,) = [one for one in _metadata(binary, sections)["amdhsa.kernels"] if one[".name"] == name]
    assert used + length == second >> 1 & 0x1F, "user registers that this reader knows nothing of"
    return CodeObject(
        name,
        binary[text.offset : text.offset + text.size],
        text.address,
        at + entry + (PRELOADED_ENTRY if length else 0),
        begin + size,
        tuple(Argument(one[".offset"], one[".size"], one[".value_kind"]) for one in kernel[".args"]),
        kernarg,
        local,
        private,
        user | {"preloaded": used, "end": used + length},
        (first, length),
        (bool(second >> 7 & 1), bool(second >> 8 & 1), bool(second >> 9 & 1)),
        kernel[".vgpr_count"],
        ((third & 0x3F) + 1) * 4,
        kernel[".wavefront_size"],
    )


def _user(properties: int) -> tuple[dict[str, int], int]:
    """The first register of each thing, and how many registers they take together."""
    user, used = dict[str, int](), 0
    for bit, (thing, count) in enumerate(USER_REGISTERS):
        if properties >> bit & 1:
            user[thing] = used
            used += count
    return user, used


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int


def _sections(binary: bytes) -> list[_Section]:
    (begin,) = struct.unpack_from("<Q", binary, 0x28)
    each, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    rows = [struct.unpack_from("<IIQQQQI", binary, begin + place * each) for place in range(count)]
    strings = rows[names][4]
    return [
        _Section(_string(binary, strings + name), kind, address, offset, size, link)
        for name, kind, _, address, offset, size, link in rows
    ]


def _symbols(binary: bytes, sections: list[_Section]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The address and the size of each, by name."""
    for table in sections:
        if table.type == SYMBOLS or table.name == ".dynsym":
            for at in range(table.offset, table.offset + table.size, 24):
                name, _, _, _, value, size = struct.unpack_from("<IBBHQQ", binary, at)
                yield _string(binary, sections[table.link].offset + name), (value, size)


def _string(binary: bytes, at: int) -> str:
    return binary[at : binary.index(b"\0", at)].decode()


def _metadata(binary: bytes, sections: list[_Section]) -> dict[str, Any]:
    """What the note says, which is MessagePack."""
    for section in sections:
        if section.type == NOTE:
            name, size, kind = struct.unpack_from("<III", binary, section.offset)
            begin = section.offset + 12 + (name + 3) // 4 * 4
            if kind == AMDGPU_METADATA:
                value: dict[str, Any] = unpack(binary[begin : begin + size], 0)[0]
                return value
    raise ValueError("no metadata of the AMDGPU backend in any note")


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    """One value of MessagePack, and where it ends; what code objects hold of it."""
    byte = data[at]
    if byte < 0x80 or byte >= 0xE0:
        return byte - (byte >= 0xE0) * 256, at + 1
    if byte < 0x90:
        return _mapping(data, at + 1, byte & 15)
    if byte < 0xA0:
        return _array(data, at + 1, byte & 15)
    if byte < 0xC0:
        return _text(data, at + 1, byte & 31)
    if byte in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[byte], at + 1
    if 0xCC <= byte <= 0xD3:
        width = 1 << (byte & 3)
        return int.from_bytes(data[at + 1 : at + 1 + width], "big", signed=byte >= 0xD0), at + 1 + width
    sized = {0xD9: (1, _text), 0xDA: (2, _text), 0xDB: (4, _text), 0xDC: (2, _array), 0xDD: (4, _array),
             0xDE: (2, _mapping), 0xDF: (4, _mapping)}  # fmt: skip
    width, read = sized[byte]
    return read(data, at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big"))


def _text(data: bytes, at: int, size: int) -> tuple[Any, int]:
    return data[at : at + size].decode(), at + size


def _array(data: bytes, at: int, count: int) -> tuple[Any, int]:
    found = []
    for _ in range(count):
        value, at = unpack(data, at)
        found.append(value)
    return found, at


def _mapping(data: bytes, at: int, count: int) -> tuple[Any, int]:
    flat, end = _array(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), end
