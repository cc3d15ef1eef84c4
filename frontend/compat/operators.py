"""Operators that transformers registers and that a traced program calls."""

from __future__ import annotations

import importlib

from headrace.errors import TargetError
from headrace.ir import Program


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
