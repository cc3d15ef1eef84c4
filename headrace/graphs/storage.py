"""Exported programs on the disk."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch.export import ExportedProgram

from headrace.utils.sink import sink


def save(exported: ExportedProgram, path: Path) -> None:
    """Write a program, weights included, and no pickle: the inputs that it was traced on would be one.

    Raises:
        OSError: it cannot be written; torch would end the process.
    """
    bare = copy.copy(exported)
    bare.example_inputs = None
    with sink(path) as file:
        torch.export.save(bare, file)
