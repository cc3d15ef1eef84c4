"""The targets, by name. A backend is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import cast

from headrace.backends.interface import Backend
from headrace.errors import TargetError, missing_library

TARGETS = {
    "reference": "headrace.backends.reference:Reference",
    "cpu": "headrace.backends.cpu:Cpu",
    "cuda": "headrace.backends.gpu.cuda:Cuda",
    "rocm": "headrace.backends.gpu.rocm:Rocm",
    "onnx": "headrace.backends.onnx.target:Onnx",
}
# Targets that run on one of several devices, named after a colon: onnx:cuda, rocm:gfx942.
VARIANTS = frozenset({"onnx", "cuda", "rocm"})


def backend(target: str, *, compiles: bool = True) -> Backend:
    """The backend of a target, checked to run here; "auto" picks the best device present.

    Args:
        compiles: whether it will compile here, so that what compiling needs is checked too.

    Raises:
        TargetError: no such target, or something that it needs is missing here.
    """
    name, colon, variant = (preferred() if target == "auto" else str(target)).partition(":")
    if name not in TARGETS or (colon and (not variant or name not in VARIANTS)):
        raise TargetError(f"There is no target {target!r}. Choose from auto, {', '.join(TARGETS)}.")
    module, attribute = TARGETS[name].split(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
        found = cast(Backend, kind(variant) if variant else kind())
        found.check(compiles)
    except ImportError as error:
        if (refusal := missing_library(error, f"The target {name}")) is None:
            raise
        raise refusal from error
    return found


def preferred() -> str:
    """What "auto" means here. A device that is there but unusable is an error, not a reason to go on."""
    import torch

    # torch for ROCm answers to torch.cuda too.
    device = "rocm" if torch.version.hip is not None else "cuda" if torch.version.cuda is not None else "cpu"
    return device if torch.cuda.is_available() else "cpu"
