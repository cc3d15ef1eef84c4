"""Operators that transformers registers and that a traced program calls."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.errors import TargetError
from headrace.ir import Program

if TYPE_CHECKING:  # an exported model is read without torch
    from torch import Tensor


def register(program: Program) -> None:
    """Register them for a program that was read from a file: the grouped products of routed experts.

    Raises:
        TargetError: transformers is not installed.
    """
    if not program.evidence.routed_experts:
        return
    try:
        importlib.import_module("transformers.integrations.moe")
    except ImportError as error:
        raise TargetError(
            "The saved model has routed experts, whose products are an operator of transformers, which cannot be "
            'imported: pip install "headrace[torch]"'
        ) from error


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows [T, in], those of one group together, times their group's weight [groups, out, in].

    Args:
        ends: int32 [groups], where each group ends.
    """
    moe: Any = importlib.import_module("transformers.integrations.moe")
    product: Tensor = moe._grouped_linear(rows, weight, offs=ends)
    return product
