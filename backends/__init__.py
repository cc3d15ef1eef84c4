"""The targets, by name. A backend is imported when it is asked for."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, cast

from headrace.backends.interface import Backend
from headrace.backends.several import Several, read_parallel
from headrace.errors import TargetError, missing_library
from headrace.target import AUTO, Target, parse_target
from headrace.utils.scratch import require_cache

TARGETS = {
    "reference": "headrace.backends.reference:Reference",
    "cpu": "headrace.backends.cpu:Cpu",
    "cuda": "headrace.backends.gpu.cuda:Cuda",
    "rocm": "headrace.backends.gpu.rocm:Rocm",
    "onnx": "headrace.backends.onnx.target:Onnx",
}
# Kinds that have variants and devices, which follow a colon: onnx:cuda, rocm:gfx942, cuda:1.
PLACED = frozenset({"onnx", "cuda", "rocm"})


def backend(target: str | Target, *, compiles: bool = True, parallel: str | None = None) -> Backend:
    """The backend of a target, checked to run here; "auto" picks the best device present.

    Args:
        compiles: whether it will compile here, so that what compiling needs is checked too.
        parallel: how several devices share the work, a `Parallel`; None is "data".

    Raises:
        TargetError: no such target, or something that it needs is missing here.
        InputError: no such way to share, or one device alone.
    """
    wanted = _known(preferred() if target == AUTO else target)
    shared = read_parallel(parallel, wanted)
    if str(wanted) != wanted.kind and wanted.kind not in PLACED:
        raise TargetError(
            f"The target {wanted.kind} has neither variants nor devices, and {str(wanted)!r} names one. Write "
            f'"{wanted.kind}"; those that have are {", ".join(sorted(PLACED))}.'
        )
    if len(wanted.devices) > 1:
        each = tuple(replace(wanted, devices=(device,)) for device in wanted.devices)
        found = [_found(one, compiles) for one in each]
        return Several(wanted, each, found[0], shared)
    return _found(wanted, compiles)


def _found(wanted: Target, compiles: bool) -> Backend:
    module, attribute = TARGETS[wanted.kind].split(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
        found = cast(Backend, kind(wanted.variant, wanted.device) if wanted.kind in PLACED else kind())
        if "torch" in found.libraries:
            require_cache()
        found.check(compiles)
    except ImportError as error:
        if (refusal := missing_library(error, f"The target {wanted.kind}")) is None:
            raise
        raise refusal from error
    return found


def target_of(device: Any, target: str = AUTO) -> str:
    """The target of a device as torch and transformers name it; None leaves it to `target`.

    Args:
        device: "cpu", "cuda", "cuda:1", a torch.device, or a number as of pipelines: -1 is the CPU.

    Raises:
        TargetError: no such device, or a target besides.
    """
    if device is None:
        return target
    if target != AUTO:
        raise TargetError(f"device={str(device)!r} and target={target!r} are both given. Pass one; a target says more.")
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}" if device >= 0 else "cpu"
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return kind
    if kind != "cuda" or (number and not number.isdecimal()):
        raise TargetError(
            f"There is no target for device={str(device)!r}. Devices are cpu, cuda and cuda:N; targets, as target=, "
            f"auto, {', '.join(TARGETS)}."
        )
    import torch

    # torch for ROCm calls its devices cuda too.
    return str(Target("rocm" if torch.version.hip is not None else kind, devices=(int(number),) if number else ()))


def _known(target: str | Target) -> Target:
    known = f"Choose from auto, {', '.join(TARGETS)}."
    try:
        wanted = parse_target(target)
    except TargetError as error:
        raise TargetError(f"{error} {known}") from error
    if wanted.kind not in TARGETS:
        raise TargetError(f"There is no target {str(target)!r}. {known}")
    return wanted


def preferred() -> str:
    """What "auto" means here. A device that is there but unusable is an error, not a reason to go on."""
    import torch

    # torch for ROCm answers to torch.cuda too.
    device = "rocm" if torch.version.hip is not None else "cuda" if torch.version.cuda is not None else "cpu"
    return device if torch.cuda.is_available() else "cpu"
