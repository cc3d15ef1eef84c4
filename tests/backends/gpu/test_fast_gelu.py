"""The short GELU is the erf one, not an approximation of it that a result could show."""

from __future__ import annotations

import pytest
import torch

from headrace.backends.gpu.passes.fast_gelu import GELU, FastGelu, erf_gelu

EDGES = [0.0, -0.0, 1e-30, -1e-30, 3e38, -3e38]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounds_as_the_exact_one_does(dtype: torch.dtype) -> None:
    """Every finite value of the dtype: within the dtype's rounding of float64, plus erf's 1.5e-7 near the tail."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    x = x[torch.isfinite(x)]
    exact = torch.nn.functional.gelu(x.double())
    found = erf_gelu(x).double()
    assert bool(((found - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + 6e-7).all())


def test_float32_error() -> None:
    x = torch.linspace(-12, 12, 200001)
    assert float((erf_gelu(x).double() - torch.nn.functional.gelu(x.double())).abs().max()) < 1e-6


def test_edges() -> None:
    x = torch.tensor(EDGES)
    torch.testing.assert_close(erf_gelu(x), torch.nn.functional.gelu(x.double()).float())
    # What is not finite stays so, and is refused at the end.
    assert not bool(torch.isfinite(erf_gelu(torch.tensor([torch.nan, torch.inf, -torch.inf]))).any())


@pytest.mark.parametrize(("dtype", "form", "changed"), [
    (torch.bfloat16, "none", True), (torch.float32, "none", False), (torch.bfloat16, "tanh", False),
])  # fmt: skip
def test_only_the_erf_form_in_half_precision_is_replaced(dtype: torch.dtype, form: str, changed: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x, approximate=form)

    module = torch.export.export(Model(), (torch.ones(3, dtype=dtype),)).run_decompositions({}).graph_module
    FastGelu()(module.graph)
    targets = [node.target for node in module.graph.nodes]
    assert (erf_gelu in targets, GELU in targets) == (changed, not changed)
