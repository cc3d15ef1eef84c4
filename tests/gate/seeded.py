"""Our attention kernel with a defect put into its source, to see what notices."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from headrace.backends.kernels import attention

SOURCE = Path(attention.__file__).parent / "kernel.py"


def mutated(folder: Path, name: str, old: str, new: str) -> Any:
    """The module of the kernel with one text in place of another, wherever it stands; it must stand somewhere.

    Triton reads a kernel's source from its file.
    """
    text = SOURCE.read_text()
    assert old in text, f"the kernel no longer says {old!r}: seed the defect elsewhere"
    file = folder / f"seeded_{name}.py"
    file.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
