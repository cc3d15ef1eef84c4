# mypy: disable-error-code="import-not-found, import-untyped"
"""Machine code to instructions, by the decoder that ships in tinygrad's wheel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MISSING = "needs tinygrad, whose wheel holds a decoder of CDNA and AMD's pseudocode: pip install tinygrad"
SUFFIX = re.compile(r"_(e32|e64|sdwa|dpp)$")
# What LLVM calls by another name than the decoder's, which is a whole family's.
ALIASES = {
    "v_accvgpr_read": "v_accvgpr_read_b32",
    "v_accvgpr_write": "v_accvgpr_write_b32",
    "v_mad_mix_f32": "v_fma_mix_f32",
    "v_mad_mixlo_f16": "v_fma_mixlo_f16",
    "v_mad_mixhi_f16": "v_fma_mixhi_f16",
}


class UnknownInstructionError(Exception):
    """An instruction that the decoder or the model knows nothing of."""


@dataclass(frozen=True)
class Instruction:
    """One instruction where it lies.

    Attributes:
        address: in the code object's text.
        size: bytes.
        name: in lower case, without its encoding.
        encoding: the class that the decoder found: `VOP3`, `SMEM`, `VOP2_SDWA`, ...
        raw: the decoder's own object, whose attributes are the fields.
    """

    address: int
    size: int
    name: str
    encoding: str
    raw: Any = field(compare=False)

    def __getattr__(self, name: str) -> Any:
        """A field of the encoding, decoded."""
        return getattr(self.raw, name)

    def has(self, name: str) -> bool:
        """Whether the encoding has such a field."""
        return hasattr(type(self.raw), name)

    def number(self, name: str) -> int:
        """What stands in a field, as it stands there."""
        bits = getattr(type(self.raw), name)
        return int(self.raw._raw >> bits.lo) & int(bits.mask)

    @property
    def widths(self) -> dict[str, int]:
        """The bits of each operand, by its field."""
        return {name: bits for name, (_, bits, _) in self.raw.operands.items()}

    @property
    def formats(self) -> dict[str, str]:
        """What each operand is, by its field: `F32`, `B64`, `PK2_F16`, ..."""
        return {
            name: kind.name.removeprefix("FMT_").removeprefix("NUM_")
            for name, (kind, _, _) in self.raw.operands.items()
        }

    def __str__(self) -> str:
        """For messages."""
        return f"{self.name} ({self.encoding}) at {self.address:#x}"


def version() -> str:
    """The decoder and its release, or an empty text where it is not installed."""
    from importlib import metadata

    try:
        return f"tinygrad {metadata.version('tinygrad')}"
    except metadata.PackageNotFoundError:
        return ""


def decode(code: bytes, address: int, entry: int, end: int) -> list[Instruction]:
    """Every instruction from an address to another.

    Args:
        code: which lies at `address`.

    Raises:
        UnknownInstructionError: at an address, with the word that stands there.
    """
    from tinygrad.renderer.amd import decode_inst

    at, found = entry - address, list[Instruction]()
    while at < end - address:
        try:
            raw = decode_inst(code[at : at + 16], "cdna")
        except (ValueError, KeyError) as error:
            word = int.from_bytes(code[at : at + 4], "little")
            raise UnknownInstructionError(f"the word {word:#010x} at {address + at:#x}: {error}") from error
        name = SUFFIX.sub("", raw.op.name.lower())
        name = ALIASES.get(name, name)
        found.append(Instruction(address + at, raw.size(), name, type(raw).__name__, raw))
        at += raw.size()
    return found
