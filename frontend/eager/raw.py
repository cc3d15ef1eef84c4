"""What a head returns that no task is of: its tensors, served as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.ir import RawPart


def raw_values(output: Any) -> dict[str, Tensor]:
    """The numbers that a model returns, by name; those of a bare tuple by their place."""
    if isinstance(output, Tensor):
        output = (output,)
    named = output.items() if hasattr(output, "items") else ((f"output_{n}", one) for n, one in enumerate(output))
    return {str(name): one for name, one in named if isinstance(one, Tensor) and one.is_floating_point()}


def raw_parts(short: tuple[Any, Tensor], long: tuple[Any, Tensor]) -> tuple[RawPart, ...]:
    """How a head's tensors are served raw, by what it returned beside hidden rows [B, S, W] of two lengths.

    Empty where it has none, or one whose sizes follow the text in any other way than a row a token.
    """
    (first, rows), (second, more) = short, long
    parts, others = [], raw_values(second)
    for name, value in raw_values(first).items():
        other, batched = others.get(name), value.dim() > 0 and value.shape[0] == rows.shape[0]
        per_token = batched and value.shape[1:2] == rows.shape[1:2]
        sizes = tuple(value.shape[2 if per_token else 1 :])
        wanted = (rows.shape[0], *(more.shape[1:2] if per_token else ()), *sizes)
        if not batched or other is None or tuple(other.shape) != wanted:
            return ()
        parts.append(RawPart(name, per_token, sizes))
    return tuple(parts)


def raw_rows(output: Any, rows: Tensor, parts: tuple[RawPart, ...]) -> Tensor:
    """The parts side by side [B, S, W], each of a whole text in every row of it."""
    values, (batch, length) = raw_values(output), rows.shape[:2]
    flat = [
        values[part.name].reshape(batch, length, part.width)
        if part.per_token
        else values[part.name].reshape(batch, 1, part.width).expand(-1, length, -1)
        for part in parts
    ]
    return torch.cat(flat, -1)
