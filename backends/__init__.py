"""The targets, by name. A backend is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import cast

from headrace.backends.interface import Backend
from headrace.errors import TargetError

TARGETS = {
    "reference": "headrace.backends.reference:Reference",
    "cpu": "headrace.backends.cpu:Cpu",
    "cuda": "headrace.backends.cuda:Cuda",
}


def backend(target: str, *, compiles: bool = True) -> Backend:
    """The backend of a target, checked to run here; "auto" picks the best device present.

    Args:
        compiles: whether it will compile here, so that what compiling needs is checked too.

    Raises:
        TargetError: no such target, or something that it needs is missing here.
    """
    name = preferred() if target == "auto" else target
    if name not in TARGETS:
        raise TargetError(f"There is no target {target!r}. Choose from auto, {', '.join(TARGETS)}.")
    module, attribute = TARGETS[name].split(":")
    found = cast(Backend, getattr(importlib.import_module(module), attribute)())
    found.check(compiles)
    return found


def preferred() -> str:
    """What "auto" means here. A device that is there but unusable is an error, not a reason to go on."""
    import torch

    return "cuda" if torch.version.cuda is not None and torch.cuda.is_available() else "cpu"
