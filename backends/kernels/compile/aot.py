"""A program's kernels, compiled and looked over before any device sees them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

from headrace.backends.gpu.architecture import Architecture
from headrace.backends.kernels.compile.machine_code import MachineCode, faults, mask_faults
from headrace.errors import TargetError
from headrace.ir import Layout, Program

SCOPE = (
    "These are Headrace's own Triton kernels, specialised to this program: its attentions, pooling, rotations, lists "
    "of tiles, and layers that end in an activation where those are tuned. torch's Inductor compiles the rest of the "
    "graph where the device is, and products come from its libraries; neither is here. Compiled, not run."
)


@dataclass(frozen=True)
class Kernel:
    """One compiled specialisation.

    Attributes:
        name: of the kernel's function, with a number where there are several specialisations.
        uses: the nodes of the program that launch it.
    """

    name: str
    uses: tuple[str, ...]
    code: MachineCode


def kernels(program: Program, architecture: Architecture) -> list[Kernel]:
    """Every specialisation of our kernels that the program launches.

    Raises:
        TargetError: the program launches none, Triton is missing, or something is wrong with a kernel.
    """
    if program.form.layout is Layout.PADDED:
        why = program.form.layout_why or "No target asked for it to be packed."
        raise TargetError(f"The program runs padded, without kernels of Headrace's own: {why}")
    if importlib.util.find_spec("triton") is None:
        raise TargetError("Compiling kernels needs Triton, which is not installed: pip install triton")
    from headrace.backends.kernels.compile.cross_compile import cross_compile
    from headrace.backends.kernels.compile.launches import launches

    made, wrong = [], list[str]()
    found = launches(program, architecture.name)
    names = [launch.name for launch in found]
    for place, launch in enumerate(found):
        code = cross_compile(launch, architecture)
        several = names.count(launch.name) > 1
        name = f"{launch.name}_{names[:place].count(launch.name)}" if several else launch.name
        met = faults(code, multiplies=program.dtype if launch.multiplies else None, spills=None)
        met += [fault for spec in launch.attention for fault in mask_faults(launch.constants, spec)]
        wrong += [f"{name} {fault}" for fault in met]
        made.append(Kernel(name, launch.uses, code))
    if wrong:
        raise TargetError(f"Kernels for {architecture} would not run as they should: {'; '.join(wrong)}.")
    return made


def table(made: list[Kernel]) -> list[tuple[str, ...]]:
    """A row a kernel under a row of headings."""
    rows = [
        (
            kernel.name,
            f"{kernel.code.local:,}",
            str(kernel.code.spills),
            str(kernel.code.registers),
            str(kernel.code.wave),
            ", ".join(map(_short, kernel.code.matrix)) or "none",
        )
        for kernel in made
    ]
    return [("kernel", "LDS", "spills", "registers", "wave", "matrix instructions"), *rows]


def _short(instruction: str) -> str:
    """Without what every use of an instruction shares."""
    return re.sub(r"\.sync\.aligned|_async", "", instruction)
