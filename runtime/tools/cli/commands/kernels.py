"""The kernels of a program, compiled for an architecture that need not be here: shown, and written where asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.runtime.api import Lowered
from headrace.runtime.tools.cli import console, files
from headrace.runtime.tools.inspect.tables import aligned, paragraph

TABLE = "kernels.json"


def compile_kernels(lowered: Lowered, task: str | None, out: Path | None) -> None:
    """Compile, print a line a kernel, and write the binaries and the table to a folder where there is one.

    Raises:
        TargetError: a kernel cannot be compiled, or would not run as it should.
        InputError: the folder is there and holds something.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is no empty folder. Name another.")
    made = lowered.kernels(task)
    from headrace.backends.kernels.compile.aot import SCOPE, table

    architecture = made[0].code.architecture
    print(f"{architecture} ({architecture.cards}), {lowered.program.dtype}")
    print("\n".join(["", *aligned(table(made), indent=0), "", *paragraph(SCOPE)]))
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for kernel in made:
                (out / f"{kernel.name}{kernel.code.suffix}").write_bytes(kernel.code.binary)
        except OSError as error:
            raise InputError(f"{out} cannot be written: {error.strerror}.") from error
        files.write(out / TABLE, json.dumps([_facts(kernel) for kernel in made], indent=1) + "\n")
        console.note(f"wrote {out}: {len(made)} kernels and {TABLE}")


def _facts(kernel: Any) -> dict[str, Any]:
    code = kernel.code
    return {
        "name": kernel.name,
        "file": f"{kernel.name}{code.suffix}",
        "architecture": code.architecture.name,
        "lds": code.local,
        "spills": code.spills,
        "registers": code.registers,
        "wave": code.wave,
        "matrix_instructions": list(code.matrix),
        "nodes": list(kernel.uses),
    }
