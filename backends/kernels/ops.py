"""Our kernel as the GPU's implementation of `headrace::attention_varlen`. Importing this needs no Triton."""

from __future__ import annotations

from torch import Tensor

from headrace.ir import Window
from headrace.ops.packed import attention_varlen


@attention_varlen.register_kernel("cuda")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    scale: float,
    kind: str,
    window: list[int],
    softcap: float,
    bias_kind: str,
    length: int,
) -> Tensor:
    from headrace.backends.kernels.attention.op import Form, varlen_attention

    form = Form(scale, kind, Window(*window), softcap, bias_kind)
    return varlen_attention(q, k, v, cu_seqlens, length, form, sinks=sinks, bias=bias)
