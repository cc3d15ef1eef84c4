# mypy: disable-error-code="import-not-found, import-untyped"
"""A linear layer for any number of rows: few by our kernel, more by a library. Importing this needs no Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.kernels.tuning import family

# Architectures on which a kernel may begin before the one ahead of it has ended, and wait for it where it must.
EARLY = ("sm90", "sm100")
# Rows up to which reading the weights is all that counts, and their products need no matrix units.
FEW = 4
# Elements that a row's beginning is a multiple of, as a library's fast kernels want it of what they write.
ALIGNED = 8
TILE = 128  # columns of a library's kernel
# Columns of a program, elements of a row that it sums at once, and its warps: of a gated layer, of one of many columns,
# and of one of few. NVIDIA H200, bfloat16, two rows: 7.7 us for 6,144 by 1,024 (a library 6.0 and the activation), 5.1
# for 4,096 by 1,024 (4.9), 4.1 for 1,024 by 2,048 (11.7), 5.1 for 1,024 by 3,072 (6.7).
MANY = 2048
GATED_BLOCKS, MANY_BLOCKS, FEW_BLOCKS = (2, 256, 2), (2, 512, 2), (2, 1024, 4)


@torch.library.custom_op("headrace::linear_any", mutates_args=())
def linear_any(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x W' + b`, an operator that Inductor calls as it is: which way is faster hangs on the number of rows.

    Args:
        x: [..., K], dense.
        weight: [N, K], dense; `bias` [N].

    Returns:
        [..., N] in `x`'s dtype; its rows begin at multiples of `ALIGNED`.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    if len(rows) <= FEW:
        out = few_multiplied(rows, weight, bias)
    elif weight.shape[0] % ALIGNED:
        out = _in_two(rows, weight)
        out = out if bias is None else out.add_(bias)
    else:
        out = functional.linear(rows, weight, bias)
    return _shaped(out, x)


@linear_any.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return _shaped(empty_rows(rows, weight.shape[0]), x)


def _in_two(x: Tensor, weight: Tensor) -> Tensor:
    """`x W'` of a width that a library's fast kernels do not take: most of it, which they do, and the rest."""
    out, most = empty_rows(x, weight.shape[0]), weight.shape[0] // TILE * TILE
    for part in (slice(most), slice(most, None)):
        torch.mm(x, weight[part].t(), out=out[:, part])
    return out


def _shaped(rows: Tensor, x: Tensor) -> Tensor:
    """[M, N] as [..., N], as `x` has its rows."""
    sizes, strides = [rows.shape[1]], [1]
    step = rows.stride(0)
    for size in reversed(x.shape[:-1]):
        sizes.insert(0, size)
        strides.insert(0, step)
        step = step * size
    return rows.as_strided(sizes, strides)


def empty_rows(x: Tensor, columns: int) -> Tensor:
    """[M, columns], each row at a multiple of `ALIGNED`, for what is made of `x` [M, K]."""
    return x.new_empty((x.shape[0], -(-columns // ALIGNED) * ALIGNED))[:, :columns]


def few_multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str = "",
    gated: bool = False,
    late: bool = False,
    residual: Tensor | None = None,
    kernel: Any = None,
) -> Tensor:
    """The launch of our kernel; `x` is [M, K] of at most `FEW` rows, the rest as of `linear_activated`.

    Args:
        residual: [M, N], what is added at the end.
    """
    from headrace.backends.kernels.linear_few.kernel import multiply_few

    columns = weight.shape[0] // (2 if gated else 1)
    out = empty_rows(x, columns)
    block, depth, warps = GATED_BLOCKS if gated else MANY_BLOCKS if columns >= MANY else FEW_BLOCKS
    early = family(x.device) in EARLY
    (kernel or multiply_few)[(-(-columns // block),)](
        x, weight, weight if bias is None else bias, x if residual is None else residual, out, x.shape[0], columns,
        x.shape[1], x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0),
        KIND=kind, GATED=gated, LATE=late, BIASED=bias is not None, ADDED=residual is not None,
        ROWS=2 if x.shape[0] <= 2 else FEW, BLOCK_N=block, BLOCK_K=depth, EARLY=early, num_warps=warps,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out
