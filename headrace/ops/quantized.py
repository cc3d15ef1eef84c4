"""Linear layers that multiply in eight bits, defined in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR_FP8_SCHEMA = "(Tensor x, Tensor weight, Tensor scale, Tensor? bias) -> Tensor"
FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
# A row of zeros has no scale of its own.
LEAST = torch.finfo(torch.float32).tiny
LINEAR_INT8_SCHEMA = LINEAR_FP8_SCHEMA
# The largest integer of a row and of a weight. Two products of such a pair, the row's moved to begin at zero, are a
# number of sixteen bits: what processors without a sum of four products multiply by, and exactly.
ROW_LEVELS, WEIGHT_LEVELS = 127, 63


def round_to_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every row of `x` [..., K] stretched over the range of float8_e4m3fn.

    Returns:
        Float8 [..., K], and float32 [..., 1], by which it is to be multiplied.
    """
    scale = (x.abs().amax(-1, keepdim=True).float() / LARGEST).clamp(min=LEAST)
    return (x.float() / scale).to(FLOAT8), scale


@torch.library.custom_op("headrace::linear_fp8", mutates_args=(), schema=LINEAR_FP8_SCHEMA)
def linear_fp8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`x W^T + bias` of rows that are rounded to float8 as they come, each by a scale of its own, summed in float32.

    Args:
        x: [..., K].
        weight: float8_e4m3fn [N, K].
        scale: float32 [N], by which each output's weights are to be multiplied.
        bias: [N].

    Returns:
        [..., N] in `x`'s dtype.
    """
    rows, own = round_to_float8(x)
    product = (rows.float() * own) @ (weight.float() * scale[:, None]).t()
    return (product if bias is None else product + bias.float()).to(x.dtype)


@linear_fp8.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


LINEAR_FP8 = torch.ops.headrace.linear_fp8.default


def round_to_integers(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Every row of `x` [..., K] stretched over the integers from -levels to levels.

    Returns:
        Int8 [..., K], and float32 [..., 1], by which it is to be multiplied.
    """
    scale = (x.abs().amax(-1, keepdim=True).float() / levels).clamp(min=LEAST)
    return (x.float() / scale).round().to(torch.int8), scale


@torch.library.custom_op("headrace::linear_int8", mutates_args=(), schema=LINEAR_INT8_SCHEMA)
def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`x W^T + bias` of rows that are rounded to integers as they come, each by a scale of its own, summed exactly.

    Args:
        x: [..., K].
        weight: int8 [N, K], none beyond `WEIGHT_LEVELS`.
        scale: float32 [N], by which each output's weights are to be multiplied.
        bias: [N].

    Returns:
        [..., N] in `x`'s dtype.
    """
    rows, own = round_to_integers(x, ROW_LEVELS)
    product = (rows.double() @ weight.double().t()).float() * own * scale
    return (product if bias is None else product + bias.float()).to(x.dtype)


@linear_int8.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


LINEAR_INT8 = torch.ops.headrace.linear_int8.default
