"""`linear_fp8` on a GPU: torch's product of scaled float8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from headrace.compat.torch import scaled_mm
from headrace.ops.quantized import LINEAR_FP8, round_to_float8


def scaled_product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`headrace::linear_fp8`, the rows rounded by operations that Inductor fuses into what computes them."""
    rows, own = round_to_float8(x.reshape(-1, x.shape[-1]))
    return product(rows, own, weight, scale, bias, x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def product(
    rows: Tensor, own: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """The product of rounded rows [M, K] and weights [N, K], each with its scales [M, 1] and [N], in that dtype.

    Sums are kept as the matrix units keep them, which is less than float32 and much faster (`use_fast_accum`), as
    torchao's dynamic float8 does.
    """
    return scaled_mm(rows, weight.t(), own, scale[None], bias=bias, out_dtype=dtype, use_fast_accum=True)


@dataclass(frozen=True)
class ScaleProducts:
    """Every `linear_fp8` is `scaled_product`."""

    name: str = "scale-products"

    def __call__(self, graph: fx.Graph) -> None:
        """Put it there."""
        for node in graph.nodes:
            if node.target is LINEAR_FP8:
                node.target = scaled_product
