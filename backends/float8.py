"""`linear_fp8` on a GPU: torch's product of scaled float8, the rounding of the rows left to Inductor to fuse."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from headrace.float8_ops import LINEAR_FP8, rounded


def scaled_product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`headrace::linear_fp8` by `torch._scaled_mm`: a scale for each row of `x` and for each output.

    Sums are kept as the matrix units keep them, which is less than float32 and much faster (`use_fast_accum`), as
    torchao's dynamic float8 does.
    """
    rows, own = rounded(x.reshape(-1, x.shape[-1]))
    product = torch._scaled_mm(
        rows, weight.t(), own, scale[None], bias=bias, out_dtype=x.dtype, use_fast_accum=True
    )  # fmt: skip
    return product.reshape(*x.shape[:-1], weight.shape[0])


def with_scaled_products(graph: fx.Graph) -> None:
    """Put `scaled_product` for every `linear_fp8`."""
    for node in graph.nodes:
        if node.target is LINEAR_FP8:
            node.target = scaled_product
