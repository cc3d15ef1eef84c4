"""Each recurrent operator against its published recurrence, and the function of transformers that it stands for."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba import modeling_mamba as mamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as recurrent_gemma
from transformers.models.rwkv import modeling_rwkv as rwkv
from transformers.models.xlstm import modeling_xlstm as xlstm

from headrace.ops import linear_recurrence, recurrent  # noqa: F401 - they register the operators
from tests.recurrences import (
    chunk_operands,
    chunk_scanned,
    convolution_operands,
    convolved,
    delta_operands,
    delta_ruled,
    difference,
    kimi_operands,
    linear_operands,
    linearly_recurred,
    mlstm_operands,
    remembered,
    scan_operands,
    scanned,
    weighed,
    widened,
    wkv_operands,
)

OPS = torch.ops.headrace
LENGTHS = (1, 2, 7, 70)
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def recurrent_gemma_scan(x, decay):
    kind, never = recurrent_gemma.RecurrentGemmaRglru, torch.zeros(1, 1, 1, dtype=torch.bool)
    if x.shape[1] == 1:  # which it takes for a step of generation, without a decay
        decay = torch.zeros_like(decay)
    return kind._rnn_scan(None, hidden_states=x, recurrent_gate=decay, reset=never, recurrent_states=None)[0]


# operator, operands, the recurrence written out, transformers' function on the same operands
CASES = {
    "convolution": (
        OPS.causal_conv1d, convolution_operands, convolved,
        lambda x, w, b: mamba.causal_conv1d_fn(x, w, b),
    ),
    "selective": (
        OPS.selective_scan, scan_operands, scanned,
        lambda x, dt, a, b, c, d, z, bias, softplus: mamba.mamba_selective_scan(
            x, dt, a, b, c, D=d, z=z, delta_bias=bias, delta_softplus=softplus
        ),
    ),
    "chunk": (
        OPS.chunk_scan, chunk_operands, chunk_scanned,
        lambda x, dt, a, b, c, d, bias, softplus, least, most: mamba2.mamba2_chunk_scan(
            x, dt, a, b, c, 8, D=d, dt_bias=bias, dt_softplus=softplus, dt_limit=(least, most)
        ),
    ),
    "delta": (
        OPS.gated_delta_rule, delta_operands, delta_ruled,
        lambda q, k, v, g, beta, normalize: qwen.torch_chunk_gated_delta_rule(
            q.repeat_interleave(2, 2), k.repeat_interleave(2, 2), v, g, beta, use_qk_l2norm_in_kernel=normalize
        )[0],
    ),
    "delta a channel": (
        OPS.gated_delta_rule, kimi_operands, delta_ruled,
        lambda q, k, v, g, beta, normalize: kimi.chunk_kimi_delta_attention(
            q, k, v, g, beta, use_qk_l2norm_in_kernel=normalize
        )[0],
    ),
    "linear": (OPS.linear_recurrence, linear_operands, linearly_recurred, recurrent_gemma_scan),
    "wkv": (
        OPS.wkv, wkv_operands, weighed,
        lambda decay, first, k, v: rwkv.rwkv_linear_attention_cpu(decay, first, k, v)[0],
    ),
    "mlstm": (
        OPS.mlstm, mlstm_operands, remembered,
        lambda q, k, v, i, f, epsilon: xlstm.mlstm_recurrent_sequence_native(q, k, v, i, f, eps=epsilon),
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
@pytest.mark.parametrize("length", LENGTHS[:3])
def test_is_the_published_recurrence(case, length):
    operator, operands, recurrence, _ = case
    given = operands(length)
    assert difference(operator(*given), recurrence(*given)) < BOUNDS[torch.float64]


@cases
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_what_transformers_computes(case, length, dtype):
    """In each dtype no further from float64 than the format allows; the result has transformers' dtype."""
    operator, operands, _, function = case
    given = operands(length, dtype)
    got, theirs = operator(*given), function(*given)
    exact = operator(*widened(given))
    assert got.dtype == theirs.dtype
    assert difference(got, exact) < BOUNDS[dtype]
    # Transformers' forms in chunks, and its bfloat16 steps, are further from float64 than ours.
    assert difference(got, theirs) < BOUNDS[dtype] + difference(theirs, exact) < 4 * BOUNDS[dtype]


@cases
def test_looks_back_only(case):
    """A changed last token leaves every earlier row as it was, bit for bit; the last row changes."""
    operator, operands, *_ = case
    along = 2 if operator in (OPS.causal_conv1d, OPS.selective_scan, OPS.mlstm) else 1
    given = operands(9, torch.float32)
    before = operator(*given)
    changed = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
    changed[2 if operator is OPS.wkv else 0].select(along, -1).add_(1.0)
    after = operator(*changed)
    assert torch.equal(before.narrow(along, 0, 8), after.narrow(along, 0, 8))
    assert not torch.equal(before, after)


@cases
def test_the_fake_operator_has_the_shape_and_strides_of_the_real_one(case):
    """Compiled code lays its buffers out by what the fake operator says."""
    operator, operands, *_ = case
    given = operands(5, torch.bfloat16)
    swapped = [x.transpose(0, 1).contiguous().transpose(0, 1) if isinstance(x, torch.Tensor) and x.dim() > 1 else x
               for x in given]  # fmt: skip
    for operands_ in (given, swapped):
        torch.library.opcheck(
            operator.default,
            tuple(operands_),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
        )


def test_optional_operands_are_left_out():
    x, dt, a, b, c, *_ = scan_operands(4)
    zero, none = torch.zeros(3, dtype=x.dtype), (None, None, None)
    plain = OPS.selective_scan(x, dt.exp(), a, b, c, *none, False)
    assert torch.equal(plain, OPS.selective_scan(x, dt.exp(), a, b, c, zero, None, zero, False))
    x, dt, a, b, c, *_ = chunk_operands(4)
    plain = OPS.chunk_scan(x, dt.exp(), a, b, c, None, None, False, None, None)
    assert torch.equal(plain, OPS.chunk_scan(x, dt.exp(), a, b, c, None, None, False, 0.0, math.inf))
    x, weight, _ = convolution_operands(4)
    assert torch.equal(OPS.causal_conv1d(x, weight, None), OPS.causal_conv1d(x, weight, torch.zeros(3).double()))
