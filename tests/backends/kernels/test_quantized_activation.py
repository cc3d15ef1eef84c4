"""Activations that are rounded to eight bits as they are computed: found where they are, and near float64."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import pytest
import torch

from headrace import graphs
from headrace.graphs.passes import run_graph_passes
from headrace.ir import Layout, Task
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.pipeline import prepare
from headrace.ops.quantized import FLOAT8, LINEAR_FP8
from tests.backends.kernels.test_attention import run_interpreted
from tests.backends.kernels.test_linear_activation import CASES

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")


class CastByTorch:
    """The kernel but for its last step: the interpreter loses a carry where float8 rounds up to a power of 2."""

    def __getitem__(self, grid: Any) -> Any:
        from headrace.backends.kernels.quantized_activation.op import round_rows

        def launch(y: Any, out: Any, *rest: Any, **constants: Any) -> None:
            wide = torch.empty(out.shape, dtype=torch.float32)
            round_rows[grid](y, wide, *rest, **constants)
            out.copy_(wide)

        return launch


def check(device: str, **kernel: Any) -> None:
    """Each value within half a step of float8, of itself and of its row's least step; the largest value is exact."""
    from headrace.backends.kernels.quantized_activation.op import round_activation

    generator = torch.Generator().manual_seed(0)
    for case, dtype, columns in itertools.product(CASES, (torch.bfloat16, torch.float16), (48, 1152)):
        y = torch.randn((5, columns * (1 + case.gated)), generator=generator).to(device, dtype)
        y[3] = 0
        values, scale = round_activation(y, *case, **kernel)
        assert (values.dtype, scale.dtype) == (FLOAT8, torch.float32)
        assert (values.shape, scale.shape) == ((5, columns), (5, 1))
        exact = case.of(y.double())
        found = values.double() * scale.double()
        assert ((found - exact).abs() <= exact.abs() * 2**-4 + scale.double() * 2**-10 + 1e-6).all(), (case, dtype)
        largest = exact.abs().amax(1)
        torch.testing.assert_close(found.abs().amax(1), largest, atol=1e-6, rtol=1e-5)
        assert (found[3] == 0).all()


def check_broken(device: str) -> None:
    """A NaN or an infinity of a row stays one, and stays in its row."""
    from headrace.backends.kernels.quantized_activation.op import round_activation

    for wrong in (torch.nan, torch.inf):
        y = torch.ones((2, 64), dtype=torch.bfloat16, device=device)
        y[1, 7] = wrong
        values, scale = round_activation(y, "gelu", False, False)
        found = values.double() * scale.double()
        assert torch.isfinite(found[0]).all()
        assert not torch.isfinite(found[1]).all()


@needs_triton
def test_under_the_interpreter() -> None:
    run_interpreted(
        "patch_interpreter(); from tests.backends.kernels.test_quantized_activation import CastByTorch, check; "
        "check('cpu', kernel=CastByTorch())"
    )


@pytest.mark.nvidia
@pytest.mark.gpu
def test_on_the_gpu() -> None:
    check("cuda")
    check_broken("cuda")


@needs_triton
@pytest.mark.parametrize(("name", "gated"), [("bert", False), ("modernbert", True), ("qwen3", True)])
def test_every_feed_forward_of_a_program(name: str, gated: bool, analysed: Any) -> None:
    """One function for the activation and the product behind it; the others stay for Inductor to fuse."""
    from headrace.backends.kernels.quantized_activation.match import FuseQuantizedActivation, activated_product

    program = QuantizeLinear(least=32)(prepare(analysed(name), Task.EMBED, Layout.PACKED))
    module = graphs.flat_module(program.graph)
    layers = len(program.nodes.attention)
    before = sum(node.target is LINEAR_FP8 for node in module.graph.nodes)
    run_graph_passes(module.graph, (FuseQuantizedActivation(),))
    made = [node for node in module.graph.nodes if node.target is activated_product]
    assert [node.args[2] for node in made] == [gated] * layers
    assert sum(node.target is LINEAR_FP8 for node in module.graph.nodes) == before - layers
    names = {str(node.target) for node in module.graph.nodes}
    assert not {"aten.gelu.default", "aten.silu.default"} & names, "the activation is computed twice"
