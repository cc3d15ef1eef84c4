# mypy: disable-error-code="import-not-found, import-untyped"
"""Defects put into a kernel's machine code, an instruction of it replaced by another as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.backends.rocm_emulator import code_object
from tests.backends.rocm_emulator.isa import decode

Change = Callable[[bytes, str], bytes]


def places(binary: bytes, name: str, wanted: str) -> Iterator[decode.Instruction]:
    """The instructions of a kernel of that name."""
    code = code_object.read(binary, name)
    for one in decode.decode(code.code, code.address, code.entry, code.end):
        if one.name == wanted:
            yield one


def replaced(wanted: str, by: Callable[[Any], Any], which: int | None = None) -> Change:
    """One of the instructions of a name, or all of them, each replaced by what a function makes of it."""

    def change(binary: bytes, name: str) -> bytes:
        found = list(places(binary, name, wanted))
        assert found, f"the kernel has no {wanted} any more: seed the defect elsewhere"
        code, changed = code_object.read(binary, name), bytearray(binary)
        begin = binary.index(code.code) - code.address
        for one in found if which is None else [found[which]]:
            data = by(one.raw).to_bytes()
            assert len(data) == one.size
            changed[begin + one.address : begin + one.address + one.size] = data
        return bytes(changed)

    return change


def nothing(raw: Any) -> Any:
    """An instruction that does nothing."""
    from tinygrad.runtime.autogen.amd.cdna import ins

    return ins.s_nop(0)


def every_lane(raw: Any) -> Any:
    """EXEC is kept, and not narrowed to the lanes that a mask names: `s_or_saveexec_b64`."""
    from tinygrad.runtime.autogen.amd.cdna import ins

    return ins.s_or_saveexec_b64(raw.sdst, raw.ssrc0)


def one_more(raw: Any) -> Any:
    """A bound that includes one more: `v_cmp_gt_i32` to `v_cmp_ge_i32`, in either encoding."""
    made = type(raw).from_bytes(raw.to_bytes())
    greater = raw.op.name.replace("_GT_", "_GE_")
    made.op = next(one for one in type(raw.op) if one.name == greater)
    return made


def swapped(raw: Any) -> Any:
    """A product with its operands in the other's place."""
    made = type(raw).from_bytes(raw.to_bytes())
    made.src0, made.src1 = raw.src1, raw.src0
    return made
