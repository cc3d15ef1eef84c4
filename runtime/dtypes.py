"""The dtype that a model is loaded in: by its name, as the model holds it, or as a target runs it."""

from __future__ import annotations

from typing import Any

import torch

from headrace.backends.interface import Backend
from headrace.errors import InputError, TargetError
from headrace.frontend.load.checkpoint import held_dtype

DTYPES = ("float32", "bfloat16", "float16", "float64")


def dtype_for(dtype: str | torch.dtype, model: Any, backend: Backend) -> torch.dtype:
    """As `read_dtype`; "auto" is what a module holds, else the backend's first.

    Raises:
        InputError: there is no such dtype.
        TargetError: the backend does not run it.
    """
    chosen = read_dtype(dtype, model, default=backend.dtypes[0])
    if _name(chosen) not in backend.dtypes:
        raise TargetError(f"The target {backend.name} runs {', '.join(backend.dtypes)}, not {_name(chosen)}.")
    return chosen


def read_dtype(dtype: str | torch.dtype, model: Any, default: str = DTYPES[0]) -> torch.dtype:
    """The dtype of a name; "auto" is what a module holds, else the default.

    Args:
        model: a folder, a hub id or an `nn.Module`.

    Raises:
        InputError: there is no dtype of that name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return held_dtype(model) or read_dtype(default, model)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; choose from auto, {', '.join(DTYPES)}.")
    found: torch.dtype = getattr(torch, dtype)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
