"""Files that a command writes beside its answers: refused before the work that would be lost, and in words after."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import InputError


def require_writable(path: Path | None) -> None:
    """Refuse a file that surely cannot be written; None is none.

    Raises:
        InputError: it is a folder, lies in none, or may not be written.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder. Name a file.")
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {folder}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied.")


def write(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error
