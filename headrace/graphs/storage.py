"""Exported programs on the disk."""

from __future__ import annotations

import copy
import errno
import os
import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram


def save(exported: ExportedProgram, path: Path) -> None:
    """Write a program, weights included, and no pickle: the inputs that it was traced on would be one.

    Raises:
        OSError: the disk has no room for the weights. torch finds out while it writes, and ends the process.
    """
    needed = sum(
        tensor.nbytes
        for tensor in (*exported.state_dict.values(), *exported.constants.values())
        if isinstance(tensor, Tensor)
    )
    if shutil.disk_usage(path.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    bare = copy.copy(exported)
    bare.example_inputs = None
    torch.export.save(bare, path)
