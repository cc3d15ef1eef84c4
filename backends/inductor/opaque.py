"""Operators that stand in compiled graphs as calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def opaque(name: str, schema: str, run: Callable[..., Tensor], shape: Callable[..., Tensor]) -> Any:
    """Register a function as an operator, so that a compiled graph calls it whole.

    Args:
        shape: what the result looks like, from operands without values.
    """
    operator = torch.library.custom_op(f"headrace::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(shape)
    return getattr(torch.ops.headrace, name).default
