"""Products in eight bits as a GPU's library computes them: on the device, and by a stand-in on the CPU."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace import graphs, sample
from headrace.backends.gpu import executable
from headrace.backends.gpu.passes.scaled_products import ScaleProducts, scaled_product
from headrace.ir import Axis, Form, Input, Layout, Role, Task
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.pipeline import prepare
from headrace.ops.quantized import FLOAT8, LINEAR_FP8, round_to_float8


def product(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, bias: Tensor | None, out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:  # fmt: skip
    """`torch._scaled_mm`, which knows no scale a row on the CPU before torch 2.12, with what it demands on CUDA."""
    assert (a.dtype, b.dtype) == (FLOAT8, FLOAT8)
    assert (scale_a.dtype, scale_b.dtype) == (torch.float32, torch.float32)
    assert a.stride(1) == 1
    assert b.stride(0) == 1, "the second is column-major"
    assert a.shape[1] % 16 == b.shape[1] % 16 == 0
    assert (scale_a.shape, scale_b.shape) == ((a.shape[0], 1), (1, b.shape[1]))
    assert scale_a.is_contiguous()
    assert scale_b.is_contiguous()
    assert bias is None or bias.dtype == out_dtype
    assert use_fast_accum
    found = (a.float() @ b.float()) * scale_a * scale_b
    return (found if bias is None else found + bias.float()).to(out_dtype)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", product)


def layer(device: str, rows: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((1, rows, 96), (48, 96), (48,)))
    values, scale = round_to_float8(weight)
    half = torch.bfloat16
    return x.to(device, half), values.to(device), scale[:, 0].to(device), bias.to(device, half)


def check(device: str) -> None:
    """Within a rounding of bfloat16 of the definition, with a bias and without, for any number of rows."""
    for rows in (1, 2, 17, 128):
        x, weight, scale, bias = layer(device, rows)
        for added in (bias, None):
            found, wanted = (run(x, weight, scale, added) for run in (scaled_product, LINEAR_FP8))
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found, wanted, atol=0.05, rtol=2**-7)


def test_the_product_is_the_operators(stand_in: None) -> None:
    check("cpu")


@pytest.mark.nvidia
@pytest.mark.gpu
def test_the_product_on_a_gpu() -> None:
    check("cuda")


def test_numbers_of_a_function_are_constants() -> None:
    """Compiled as the GPU targets compile: at one go, with an input for each input and none for a number."""
    from torch._dynamo.utils import counters

    graph = torch.fx.Graph()
    rows = graph.call_function(round_to_float8, (graph.placeholder("x"),))
    graph.output((graph.call_function(operator.getitem, (rows, 1)),))
    given = Input("x", Role.ARRAY, "float32", (Axis("batch"), Axis("width", 8)))
    signature = SimpleNamespace(inputs=(given,), input_names=("x",))
    program: Any = SimpleNamespace(signature=signature, form=Form(), dtype="float32")
    before = counters["aot_autograd"]["total"]
    run = executable._compiled(torch.fx.GraphModule({}, graph), program, [lambda: {"x": torch.randn(9, 8)}])
    assert counters["aot_autograd"]["total"] == before + 1
    x = torch.randn(5, 8)
    torch.testing.assert_close(run(x)[0], round_to_float8(x)[1])


@pytest.mark.parametrize("layout", [Layout.PADDED, Layout.PACKED])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_program_in_its_terms(name: str, layout: Layout, stand_in: None, analysed: Any) -> None:
    """GPT-2's weights lie across, and its first layers are none of `aten.linear`."""
    program = QuantizeLinear(least=32)(prepare(analysed(name), Task.EMBED, layout))
    module = graphs.flat_module(program.graph)
    ScaleProducts()(module.graph)
    module.recompile()
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(scaled_product) == program.form.quantized.layers
    assert LINEAR_FP8 not in targets
    if layout is Layout.PACKED:
        inputs = sample.row(program, (5, 17, 3))
    else:
        ids = torch.arange(12).reshape(2, 6) + 3
        named = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        inputs = {name: named.get(name, torch.arange(6).expand(2, 6)) for name in program.signature.input_names}
    with torch.no_grad():
        found = module(*(inputs[name] for name in program.signature.input_names))
    torch.testing.assert_close(found[0], graphs.run(program.graph, inputs)[0][0], atol=1e-4, rtol=1e-4)
