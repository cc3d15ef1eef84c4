# mypy: disable-error-code="import-not-found, import-untyped"
"""What a compiled kernel takes of the machine, read off its code, and what is wrong with it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.backends.gpu.architecture import Architecture
from headrace.ir import AttentionSpec

# Matrix instructions that round float32 first: TF32 on NVIDIA, XF32 on gfx942.
ROUNDED = re.compile(r"xf32|tf32")


@dataclass(frozen=True)
class MachineCode:
    """One compiled kernel.

    Attributes:
        binary: an ELF file: hsaco for AMD, cubin for NVIDIA.
        local: bytes of local memory that a program takes.
        spills: registers that found no room, each a trip to memory.
        wave: threads that run in step.
        matrix: the matrix instructions in it, by name.
    """

    architecture: Architecture
    binary: bytes = field(repr=False)
    local: int
    spills: int
    registers: int
    wave: int
    matrix: tuple[str, ...]

    @property
    def suffix(self) -> str:
        """Of its file."""
        return ".hsaco" if self.architecture.vendor == "hip" else ".cubin"


def read(made: Any, architecture: Architecture) -> MachineCode:
    """Read what Triton compiled.

    Args:
        made: a `triton.compiler.CompiledKernel`, which need not be loaded.
    """
    assembly = str(made.asm["amdgcn" if architecture.vendor == "hip" else "ptx"])
    binary = bytes(made.asm["hsaco" if architecture.vendor == "hip" else "cubin"])
    if architecture.vendor == "hip":
        # Scalar registers spill into lanes of vector registers, which costs no memory: what a thread keeps in memory
        # of its own is counted. Four bytes a register.
        spills = max(_number(assembly, "vgpr_spill_count"), _number(assembly, "private_segment_fixed_size") // 4)
        registers, wave = _number(assembly, "vgpr_count"), _number(assembly, "wavefront_size")
    else:
        usage = _resources(binary)
        # A thread's stack holds what was spilled; our kernels have no other use for one.
        spills, registers, wave = usage["STACK"] // 4, usage["REG"], architecture.wave
    names = "|".join(re.escape(prefix) for prefix in architecture.matrix)
    matrix = tuple(sorted(set(re.findall(rf"(?<![\w.])(?:{names})[\w.:]*", assembly))))
    return MachineCode(architecture, binary, int(made.metadata.shared), spills, registers, wave, matrix)


def _number(assembly: str, name: str) -> int:
    """A field of the metadata that AMD's assembler writes behind the code."""
    found = re.search(rf"\.{name}:\s+(\d+)", assembly)
    assert found, f"the assembly says no {name}"
    return int(found[1])


def _resources(binary: bytes) -> dict[str, int]:
    """What a cubin takes, as NVIDIA's own tool reads it, which comes with Triton."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", told)}


def faults(code: MachineCode, *, multiplies: str | None, spills: int | None = 0) -> list[str]:
    """What is wrong with a kernel, whatever it computes.

    Args:
        multiplies: the dtype whose matrices it multiplies; None where it multiplies none.
        spills: the most registers that may spill, which makes it slow and not wrong; None for any number.
    """
    return list(_faults(code, multiplies, spills))


def _faults(code: MachineCode, multiplies: str | None, spills: int | None) -> Iterator[str]:
    target = code.architecture
    if code.local > target.local:
        yield f"takes {code.local:,} bytes of local memory, of which {target} has {target.local:,}"
    if spills is not None and code.spills > spills:
        yield f"spills {code.spills} registers"
    if code.wave != target.wave:
        yield f"runs waves of {code.wave}, where {target} is meant to run {target.wave}"
    rounded = [name for name in code.matrix if ROUNDED.search(name)]
    if multiplies == "float32" and rounded:
        yield f"rounds float32 before it multiplies: {', '.join(rounded)}"
    expected = multiplies is not None and (multiplies != "float32" or target.float32)
    if expected and not code.matrix:
        yield f"multiplies {multiplies} without a matrix instruction ({', '.join(target.matrix)}...)"


def mask_faults(constants: dict[str, Any], attention: AttentionSpec) -> list[str]:
    """Whether an attention kernel's constants show a query the very keys that the attention's type and window do.

    Args:
        constants: of `attend_tiles` or `attend_paged`.
    """
    left, chunk = constants["LEFT"], constants["CHUNK"]
    right = constants["RIGHT"] if "RIGHT" in constants else 0 if constants["CAUSAL"] else -1

    def shown(query: int, key: int) -> bool:
        within = not (0 <= left < query - key) and not (0 <= right < key - query)
        return within and (chunk == 0 or query // chunk == key // chunk)

    bounds = {0, *attention.window, left, right, chunk, 2 * (attention.window.left + 1)}
    places = sorted({place + step for place in bounds for step in (-1, 0, 1) if place + step >= 0})
    for query in places:
        for key in places:
            if shown(query, key) != attention.sees(query, key):
                does, should = ("shows", "hides") if shown(query, key) else ("hides", "shows")
                return [
                    f"{does} the query at {query} the key at {key}, which {attention.node} ({attention.type}, "
                    f"{attention.mask} {attention.window}) {should}"
                ]
    return []
