"""LLVM's text of a kernel, and of decoded instructions what stands in it: the names and the registers."""

from __future__ import annotations

import re

from tests.backends.rocm_emulator.isa.decode import SUFFIX, Instruction

Line = tuple[str, tuple[str, ...]]
# The first of each range of vector, scalar and accumulating registers; VCC, EXEC and M0 are not always written out.
REGISTER = re.compile(r"(?<![\w.])([vsa])\[?(\d+)")
# By encoding, the fields in the order of the text.
FIELDS = {
    "SOP1": ("sdst", "ssrc0"),
    "SOP2": ("sdst", "ssrc0", "ssrc1"),
    "SOPC": ("ssrc0", "ssrc1"),
    "SOPK": ("sdst",),
    "SOPP": (),
    "SMEM": ("sdata", "sbase", "soffset"),
    "VOP1": ("vdst", "src0"),
    "VOP2": ("vdst", "src0", "vsrc1"),
    "VOPC": ("sdst", "src0", "vsrc1"),
    "VOP3": ("vdst", "src0", "src1", "src2"),
    "VOP3SD": ("vdst", "sdst", "src0", "src1", "src2"),
    "VOP3P": ("vdst", "src0", "src1", "src2"),
    "DS": ("vdst", "addr", "data0", "data1"),
    "GLOBAL": ("vdst", "addr", "data", "saddr"),
    "SCRATCH": ("vdst", "addr", "data", "saddr"),
    "MUBUF": ("vdata", "vaddr", "srsrc", "soffset"),
}
SCALAR_TARGETS = ("v_readlane_b32", "v_readfirstlane_b32")
FIRST_SPECIAL, VECTOR = 102, 256


def written(assembly: str, behind_preload: bool) -> list[Line]:
    """The instructions of LLVM's text, in order: each name without its encoding, and the registers that it names.

    Args:
        behind_preload: leave out what comes before the first jump, where the arguments are preloaded.
    """
    lines = (re.match(r"\t([a-z]+_[a-z0-9_]+)(?:\s+([^;]*))?(?:;.*)?$", line) for line in assembly.splitlines())
    found = [(SUFFIX.sub("", line[1]), tuple(map("".join, REGISTER.findall(line[2] or "")))) for line in lines if line]
    return found[[name for name, _ in found].index("s_branch") + 1 if behind_preload else 0 :]


def read(instruction: Instruction) -> Line:
    """The same of a decoded instruction."""
    fields = FIELDS[instruction.encoding.partition("_")[0]]
    named = (_register(instruction, field) for field in fields if instruction.has(field) and _named(instruction, field))
    return instruction.name, tuple(one for one in named if one)


def _named(one: Instruction, field: str) -> bool:
    """Whether the text names the field at all."""
    if one.name == "s_setreg_imm32_b32":  # its target is a register of the hardware's
        return False
    if field in ("src0", "src1", "src2"):
        return field in one.raw.operands
    if one.encoding in ("DS", "GLOBAL", "SCRATCH"):
        fills = any(word in one.name for word in ("read", "load", "permute"))
        unused = (
            ("data0", "data1", "data") if fills and "permute" not in one.name else ("data1",) if fills else ("vdst",)
        )
        if "write" in one.name and "2" not in one.name.partition("_b")[0]:
            unused = (*unused, "data1")
        return field not in unused and not (one.encoding == "SCRATCH" and field == "addr" and not one.number("sve"))
    if field == "vaddr":
        return bool(one.number("offen"))
    if one.encoding == "SMEM" and field == "soffset":
        return bool(one.number("soffset_en"))
    if one.encoding == "VOPC_SDWA_SDST" and field == "sdst":
        return bool(one.number("sd"))
    return True


def _register(one: Instruction, field: str) -> str:
    """Its letter and its number; nothing for a constant and for what has a name of its own."""
    offset = one.raw.vsrc0.offset if field == "src0" and one.has("vsrc0") else getattr(one.raw, field).offset
    if one.has("src0_sel") and field in ("src0", "vsrc1") and one.number("s0" if field == "src0" else "s1"):
        offset -= VECTOR
    if one.name in SCALAR_TARGETS and field == "vdst":
        offset -= VECTOR
    if offset >= VECTOR:
        return f"{'a' if _accumulates(one, field) else 'v'}{offset - VECTOR}"
    return f"s{offset}" if offset < FIRST_SPECIAL else ""


def _accumulates(one: Instruction, field: str) -> bool:
    if one.name == "v_accvgpr_read_b32":
        return field == "src0"
    if one.name == "v_accvgpr_write_b32":
        return field == "vdst"
    if one.encoding == "VOP3P_MFMA":
        if field in ("vdst", "src2"):
            return bool(one.number("acc_cd"))
        return bool(one.number("acc") >> (field == "src1") & 1)
    return field in ("vdst", "vdata", "data", "data0", "data1") and one.has("acc") and bool(one.number("acc"))
