"""Runs the gate: the programs are traced once, then a process an architecture compiles every kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gate import programs, rows

ROOT = Path(__file__).parents[2]


def run(wanted: Mapping[str, tuple[str, ...]], jobs: int, whole: bool = True) -> list[rows.Row]:
    """The rows of each architecture, for the programs that are named with it and for our kernels by themselves.

    Args:
        whole: every specialisation of our kernels; otherwise one of each.

    Raises:
        RuntimeError: a process failed; its last words.
    """
    names = tuple(dict.fromkeys(name for each in wanted.values() for name in each))
    with tempfile.TemporaryDirectory() as folder:
        programs.write(Path(folder), names)
        with ThreadPoolExecutor(jobs) as pool:
            made = pool.map(lambda one: _compiled(Path(folder), *one, whole), wanted.items())
            found = list(made)
    return [row for each in found for row in each]


def _compiled(folder: Path, architecture: str, names: tuple[str, ...], whole: bool) -> list[rows.Row]:
    """What one process finds. Triton keeps what it compiles: each gets an empty place, so that nothing is old."""
    out = folder / f"{architecture}.rows.json"
    command = [sys.executable, "-m", "tests.gate.emitted", architecture, str(folder), str(out)]
    command += ["whole" if whole else "part", *names]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / f"{architecture}.triton")}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{architecture}.inductor"), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{architecture}: {done.stderr[-3000:]}")
    return rows.read(out)
