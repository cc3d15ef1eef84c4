# mypy: disable-error-code="import-not-found, import-untyped"
"""A linear layer with the activation after it, `act(x W' + b)`, as one operator. Importing this needs no Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.kernels.linear_few import op as linear_few
from headrace.backends.kernels.tuning import PRODUCTS, Product

KINDS = ("gelu", "gelu_tanh", "silu", "relu")
# Bytes that a row's beginning is a multiple of, as the copy engine wants it.
ALIGNED = 16
# With fewer rows a library's product and the activation by itself are faster: its tiles shrink with the rows.
FEW = 4096
BLOCK = 1024  # elements of one program of the activation by itself


@torch.library.custom_op("headrace::linear_activated", mutates_args=())
def linear_activated(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, gated: bool, late: bool, family: str
) -> Tensor:
    """`act(x W' + b)`, or of a gated layer `act(x W1' + b1) * (x W2' + b2)`; sums and activation in float32.

    An operator that Inductor calls as it is: which of two ways is faster hangs on the number of rows.

    Args:
        x: [..., K], dense.
        weight: [N, K], or [2N, K] where it is gated; `bias` [N] or [2N].
        kind: one of `KINDS`.
        late: whether W2 stands before W1 in `weight`.
        family: the architecture whose tuning is taken, as `tuning.family` names it.

    Returns:
        [..., N] in `x`'s dtype.
    """
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) <= linear_few.FEW:
        out = linear_few.few_multiplied(rows, weight, bias, kind, gated, late)
    elif len(rows) < FEW:
        out = activated(functional.linear(rows, weight, bias), kind, gated, late)
    else:
        out = multiplied(rows, weight, bias, kind, gated, late, PRODUCTS[family])
    return out.view(*x.shape[:-1], out.shape[1])


@linear_activated.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, gated: bool, late: bool, family: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0] // (2 if gated else 1)))


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    gated: bool,
    late: bool,
    tuned: Product,
    kernel: Any = None,
) -> Tensor:
    """The launch of the one kernel; `x` is [M, K]."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from headrace.backends.kernels.linear_activation.kernel import multiply_activate

    rows, columns = x.shape[0], weight.shape[0] // (2 if gated else 1)
    # Two halves of a gated product are summed side by side, in the registers of one.
    n = tuned.n // 2 if gated else tuned.n
    out = x.new_empty((rows, columns))
    described = [
        TensorDescriptor.from_tensor(tensor, block)
        for tensor, block in ((x, [tuned.m, tuned.k]), (weight, [n, tuned.k]), (out, [tuned.m, n]))
    ]
    programs = ((rows + tuned.m - 1) // tuned.m) * ((columns + n - 1) // n)
    (kernel or multiply_activate)[(programs,)](
        described[0], described[1], weight if bias is None else bias, described[2], rows, columns, x.shape[1],
        KIND=kind, GATED=gated, LATE=late, BIASED=bias is not None, BLOCK_M=tuned.m, BLOCK_N=n, BLOCK_K=tuned.k,
        BAND=tuned.band, num_warps=tuned.warps, num_stages=tuned.stages,
    )  # fmt: skip
    return out


def activated(y: Tensor, kind: str, gated: bool, late: bool, kernel: Any = None) -> Tensor:
    """The launch of the activation by itself; `y` is [M, N], or [M, 2N] where it is gated."""
    from headrace.backends.kernels.linear_activation.kernel import activate_rows

    columns = y.shape[1] // (2 if gated else 1)
    out = y.new_empty((y.shape[0], columns))
    programs = (y.shape[0] * columns + BLOCK - 1) // BLOCK
    (kernel or activate_rows)[(programs,)](
        y, out, y.shape[0] * columns, columns, KIND=kind, GATED=gated, LATE=late, BLOCK=BLOCK
    )
    return out
