# mypy: disable-error-code="import-not-found, import-untyped"
"""The launches that a short row consists of: plain functions of tensors, for a graph that no compiler reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from headrace.backends.kernels.linear_few.op import EARLY, FEW, empty_rows, few_multiplied
from headrace.backends.kernels.tuning import family

# Rows up to which these are faster than a library and what Inductor makes of the rest. NVIDIA H200, 16 rows: products
# of 768 by 768 take 3.0 microseconds with their residual (a library 3.3 without), 768 by 3,072 4.7 (7.5), 2,304 by 768
# 4.3 (4.5); a norm 1.0; with 64 rows a library's tiles are ahead. The architectures are those that were measured.
SHORT, FAMILIES = 16, ("sm90",)
TABLES = 3  # that a row is looked up in at once


class Blocks(NamedTuple):
    """One tuning of the product.

    Attributes:
        n: columns of a program.
        span: elements that are summed at once, of each part.
        parts: of the sum, taken apart.
        warps: of a program.
        stages: of the loop over the sum.
    """

    n: int
    span: int
    parts: int
    warps: int
    stages: int


BLOCKS, GATED = Blocks(16, 128, 4, 4, 4), Blocks(16, 128, 4, 4, 3)


def layer(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, gated: bool, late: bool, residual: Tensor | None
) -> Tensor:  # fmt: skip
    """`act(x W' + b) + residual`, or gated; sums, activation and residual in float32.

    Args:
        x: [..., K], of at most `SHORT` rows together.
        weight: [N, K], or [2N, K] where it is gated; dense, half precision.
        kind: one of `linear_activation.op.KINDS`, or empty.
        residual: [..., N].

    Returns:
        [..., N] in `x`'s dtype.
    """
    rows, added = as_rows(x), None if residual is None else as_rows(residual)
    launch = few_multiplied if len(rows) <= FEW else multiplied_rows
    out = launch(rows, weight, bias, kind, gated, late, added)
    return out.view(*x.shape[:-1], out.shape[1])


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centered: bool) -> Tensor:
    """Each row over its size, its mean taken away first where it is `centered`, times `offset + weight`, plus `bias`.

    Args:
        x: [..., K].
    """
    return normed_rows(as_rows(x), weight, bias, eps, offset, centered).view(x.shape)


def embedding(*given: Tensor) -> Tensor:
    """The sum of the rows that some tables have for some ids.

    Args:
        given: ids, integers [..., T] each, of up to `TABLES` tables, and then the tables, [rows, K].

    Returns:
        [..., T, K] in the tables' dtype.
    """
    ids, tables = given[: len(given) // 2], given[len(given) // 2 :]
    out = gathered_rows([one.reshape(-1) for one in ids], tables)
    return out.view(*ids[0].shape, out.shape[1])


def gathered_rows(ids: Sequence[Tensor], tables: Sequence[Tensor], kernel: Any = None) -> Tensor:
    """The launch of `embedding`'s kernel; `ids` are [M] each."""
    import triton

    from headrace.backends.kernels.linear_few.rows_kernel import gather_rows

    depth, more = tables[0].shape[1], TABLES - len(tables)
    out = tables[0].new_empty((ids[0].shape[0], depth))
    (kernel or gather_rows)[(out.shape[0],)](
        *ids, *[ids[0]] * more, *tables, *[tables[0]] * more, out, depth, TABLES=len(tables),
        WIDTH=triton.next_power_of_2(depth), num_warps=4,
    )  # fmt: skip
    return out


def as_rows(x: Tensor) -> Tensor:
    """[..., K] as [M, K], a row's elements side by side."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def multiplied_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    kind: str = "",
    gated: bool = False,
    late: bool = False,
    residual: Tensor | None = None,
    kernel: Any = None,
) -> Tensor:
    """The launch of `layer`'s kernel for more than a few rows; `x` is [M, K]."""
    from headrace.backends.kernels.linear_few.rows_kernel import multiply_rows

    columns = weight.shape[0] // (2 if gated else 1)
    out = empty_rows(x, columns)
    n, span, parts, warps, stages = GATED if gated else BLOCKS
    early = family(x.device) in EARLY
    (kernel or multiply_rows)[(-(-columns // n),)](
        x, weight, weight if bias is None else bias, x if residual is None else residual, out, x.shape[0], columns,
        x.shape[1], x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0), KIND=kind, GATED=gated,
        LATE=late, BIASED=bias is not None, ADDED=residual is not None, ROWS=SHORT, BLOCK_N=n, SPAN=span, PARTS=parts,
        STAGES=stages, EARLY=early, num_warps=warps, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out


def normed_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centered: bool, kernel: Any = None
) -> Tensor:  # fmt: skip
    """The launch of `norm`'s kernel; `x` is [M, K]."""
    import triton

    from headrace.backends.kernels.linear_few.rows_kernel import norm_rows

    rows, depth = x.shape
    out = x.new_empty((rows, depth))
    early = family(x.device) in EARLY
    (kernel or norm_rows)[(rows,)](
        x, weight, weight if bias is None else bias, out, depth, x.stride(0), depth, EPS=eps, OFFSET=offset,
        CENTERED=centered, SHIFTED=bias is not None, WIDTH=triton.next_power_of_2(depth), EARLY=early, num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out
