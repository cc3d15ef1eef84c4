"""Attention over packed sequences as an operator: its meaning on the CPU, our kernel on a GPU.

Importing this needs no Triton; running it on a GPU does. `varlen_attention` has the form that Inductor sees through.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from headrace import ops
from headrace.backends.kernels.tiles import Bias
from headrace.ir import Window

VARLEN_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? sinks, Tensor? bias, "
    "float scale, str kind, int[] window, float softcap, str bias_kind, int length) -> Tensor"
)


def distance_bias(bias: Tensor, kind: str, length: int) -> Tensor:
    """A structured bias as a tensor, [1, Hq, length, length]. See `Bias` for the kinds."""
    position = torch.arange(length, device=bias.device)
    distance = position[None, :] - position[:, None]
    if kind == Bias.ALIBI:
        return (-bias[:, None, None] * distance.abs())[None]
    reach = (bias.shape[1] - 1) // 2
    return bias[:, distance.clamp(-reach, reach) + reach][None]


def attend_each(
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
) -> Tensor:
    """The definition: every sequence alone, by the operators of `headrace.ops`; rows of no sequence are zeros."""
    out = v.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    for begin, end in itertools.pairwise(cu_seqlens.tolist()):
        alone = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
        added = None if bias is None or end == begin else distance_bias(bias, bias_kind, end - begin)
        if end > begin:
            scores = ops.attention_scores(alone[0], alone[1], added, scale, softcap)
            seen = ops.materialise_mask(None, 1, end - begin, end - begin, 0, 0, kind, Window(*window), q.device)
            out[begin:end] = ops.attend(scores, alone[2], seen, sinks)[0]
    return out


@torch.library.custom_op("headrace::attention_varlen", mutates_args=(), schema=VARLEN_SCHEMA)
def attention_varlen(
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
    """Attention of any type within each sequence of a packed batch.

    Args:
        q: [T, Hq, D], after position encoding.
        k: [T, Hkv, D], not repeated for grouped queries; `v` likewise, [T, Hkv, Dv].
        cu_seqlens: int32 [n + 1], where each sequence begins, and the end of the last. Empty sequences are allowed.
        sinks: [Hq] logits that take weight and give nothing.
        bias: of the distance alone, as `bias_kind` (a `Bias`) says.
        window: `(left, right)`, inclusive, -1 without bound.
        length: of a typical sequence. It chooses among tunings and changes no result.

    Returns:
        [T, Hq, Dv] in `v`'s dtype.
    """
    return attend_each(q, k, v, cu_seqlens, sinks, bias, scale, kind, window, softcap, bias_kind)


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
    from headrace.backends.kernels.varlen_attention import Form, varlen_attention

    form = Form(scale, kind, Window(*window), softcap, bias_kind)
    return varlen_attention(q, k, v, cu_seqlens, length, form, sinks=sinks, bias=bias)


@attention_varlen.register_fake
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
    return v.new_empty((q.shape[0], q.shape[1], v.shape[2]))


ATTENTION_VARLEN = torch.ops.headrace.attention_varlen.default
