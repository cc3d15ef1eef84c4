"""What the gate finds: a row a kernel, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.backends.kernels.compile.machine_code import MachineCode


@dataclass(frozen=True)
class Row:
    """One kernel for one architecture.

    Attributes:
        of: the program that it belongs to, or "ours" where it was compiled by itself.
        kernel: its name and what it was specialised to.
        variants: how many configurations of it were compiled; the device times them and keeps one.
    """

    architecture: str
    of: str
    kernel: str
    variants: int
    local: int
    spills: int
    registers: int
    wave: int
    matrix: tuple[str, ...]
    faults: tuple[str, ...]


def row(of: str, kernel: str, codes: list[MachineCode], faults: list[str]) -> Row:
    """A row of a kernel's configurations: the most that one takes, but the fewest spills, since the device chooses."""
    return Row(
        codes[0].architecture.name,
        of,
        kernel,
        len(codes),
        max(code.local for code in codes),
        min(code.spills for code in codes),
        max(code.registers for code in codes),
        codes[0].wave,
        tuple(sorted({name for code in codes for name in code.matrix})),
        tuple(faults),
    )


def write(path: Path, rows: list[Row]) -> None:
    """As JSON, from one process to the other."""
    path.write_text(json.dumps([asdict(one) for one in rows]))


def read(path: Path) -> list[Row]:
    """What `write` wrote."""
    return [
        Row(**{**one, "matrix": tuple(one["matrix"]), "faults": tuple(one["faults"])})
        for one in json.loads(path.read_text())
    ]


LONGEST = 60
HEADINGS = ("architecture", "of", "kernel", "variants", "LDS", "spills", "registers", "wave", "matrix instructions")


def table(rows: list[Row]) -> str:
    """All rows, then what is wrong with any."""
    cells = [HEADINGS]
    for one in rows:
        numbers = (one.variants, f"{one.local:,}", one.spills, one.registers, one.wave)
        matrix = " ".join(map(_plain, one.matrix)) or "-"
        cells.append((one.architecture, one.of, _short(one.kernel), *map(str, numbers), matrix))
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    wrong = [f"{one.architecture} {one.of} {one.kernel}: {fault}" for one in rows for fault in one.faults]
    said = f"{len(rows)} kernels in {sum(one.variants for one in rows)} configurations, {len(wrong)} faults"
    return "\n".join([*lines, "", said, *wrong])


def _short(kernel: str) -> str:
    """Inductor's names list every operator of a kernel: their beginning and the number tell them apart."""
    return kernel if len(kernel) <= LONGEST else f"{kernel[: LONGEST - 8]}...{kernel[-5:]}"


def _plain(instruction: str) -> str:
    """Without what every use of an instruction shares."""
    return instruction.replace(".sync.aligned", "").replace("_async", "")
