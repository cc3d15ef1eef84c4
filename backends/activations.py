"""Activations in fewer instructions, where a half-precision result cannot show the difference."""

from __future__ import annotations

import torch
from torch import Tensor, fx

GELU = torch.ops.aten.gelu.default
HALVES = (torch.bfloat16, torch.float16)
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: |error| <= 1.5e-7, on 0 <= x.
SPREAD = 0.3275911
SERIES = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def erf_gelu(x: Tensor) -> Tensor:
    """GELU by erf, `x * (1 + erf(x / sqrt 2)) / 2`, in float32.

    The device library's erf takes some sixty instructions, which is twice what reading and writing the values takes.
    This takes a third of them. It is no tanh approximation: it differs from erf by 1.5e-7, bfloat16 by 4e-3.
    """
    value = x.float()
    scaled = value.abs() * 0.5**0.5
    near = (1.0 + SPREAD * scaled).reciprocal()
    series = near * SERIES[4]
    for factor in reversed(SERIES[:4]):
        series = (series + factor) * near
    tail = 0.5 * series * torch.exp(-scaled * scaled)
    return (value * torch.where(value < 0, tail, 1.0 - tail)).to(x.dtype)


def shorten(graph: fx.Graph) -> None:
    """Put `erf_gelu` for every erf GELU of a half-precision tensor."""
    for node in graph.nodes:
        exact = node.target is GELU and node.kwargs.get("approximate", "none") == "none"
        if exact and node.args[0].meta["val"].dtype in HALVES:
            node.target, node.kwargs = erf_gelu, {}
