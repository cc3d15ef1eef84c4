"""A packed program in terms of our kernels: on a GPU, and on the CPU under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from headrace import graphs, sample
from headrace.ir import Layout, PoolKind, Task
from headrace.lowering.pipeline import analyse, prepare
from headrace.ops.packed import pool_packed
from tests.backends.kernels.test_attention import run_interpreted
from tests.tiny import build, checkpoint

LENGTHS = (5, 17, 3, 1, 40)
# Queries and keys, where they are rotated by halves; in GPT-OSS otherwise.
REST = pytest.mark.slow(reason="other models: qwen3's kernels are interpreted by default")
ROTATED = {"bert": 0, "modernbert": 2, "qwen3": 2, "llama": 2, "gemma3": 2, "gpt-oss": 0}


def packed(name: str) -> Any:
    from headrace.frontend.trace import trace

    traced = trace(checkpoint(build(name)))
    return prepare(analyse(traced.program, traced.behaviour), Task.EMBED, Layout.PACKED)


def check_program(name: str, device: str) -> None:
    """The same answers as the operators' definitions give, from one list of tiles a row count."""
    from headrace.backends.kernels.pipeline import with_kernels
    from headrace.backends.kernels.rotary.match import ROTATE
    from headrace.backends.kernels.use_kernels import ATTENTION_TRITON, TILES

    program = packed(name)
    lowered = with_kernels(program, "")
    targets = [node.target for node in lowered.graph.nodes]
    assert targets.count(TILES) == 1
    assert targets.count(ATTENTION_TRITON) == len(program.nodes.attention)
    rotated = [node for node in lowered.graph.nodes if node.target is ROTATE]
    assert len(rotated) == ROTATED[name] * len(program.nodes.attention)
    assert all((node.args[3] is not None) == (name in ("qwen3", "gemma3")) for node in rotated)
    inputs = sample.row(program, LENGTHS)
    (wanted,), _ = graphs.run(program.graph, inputs)
    (found,), _ = graphs.run(lowered, inputs)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def check_pooling(device: str) -> None:
    """Every kind, with filling behind the last sequence, which may hold anything."""
    from headrace.backends.kernels.pooling import reduced

    offsets = torch.tensor([0, *np.cumsum(LENGTHS), sum(LENGTHS)]).to(torch.int32)
    drawn = torch.randn(1, sum(LENGTHS) + 3, 150, generator=torch.Generator().manual_seed(0))
    drawn[:, sum(LENGTHS) :] = torch.nan
    for kind, dtype in itertools.product(PoolKind, (torch.float32, torch.bfloat16, torch.float16)):
        hidden = drawn.to(dtype)
        wanted = pool_packed(hidden[:, : sum(LENGTHS)].double(), offsets[:-1], kind)
        found = reduced(hidden.to(device), offsets.to(device), kind.value).cpu()
        assert found.dtype == dtype
        # The sum is float32's, and then it is rounded, by half a unit of the dtype at most.
        torch.testing.assert_close(found[:-1].double(), wanted, atol=1e-6, rtol=0.51 * torch.finfo(dtype).eps + 1e-6)


def check_rotation(device: str) -> None:
    """Against float64, in every dtype: within twice the error of float32 arithmetic that is rounded to the dtype."""
    from headrace.backends.kernels.rotary.op import rotated

    generator = torch.Generator().manual_seed(0)
    for dtype, norm, width in itertools.product(
        (torch.float32, torch.bfloat16, torch.float16), (False, True), (64, 80)
    ):
        x, cos, sin = (torch.randn(shape, generator=generator) for shape in ((41, 3, width), (41, width), (41, width)))
        x, cos, sin = x.to(device, dtype), cos.to(device, dtype), sin.to(device, dtype)
        weight = torch.randn(width, generator=generator).to(device, dtype) if norm else None
        exact, plain = (turned(x.to(kind), cos, sin, weight) for kind in (torch.float64, torch.float32))
        own = (plain.to(dtype).double() - exact).square().mean().sqrt()
        found = rotated(x, cos, sin, weight, 1e-6)
        assert found.dtype == dtype
        error = (found.double() - exact).square().mean().sqrt()
        assert error <= 2 * own + 1e-8, f"{dtype}, norm {norm}, {width}: {error:.2e} against {own:.2e}"


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """The operator's formula in `x`'s dtype."""
    if weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype)[:, None] + torch.cat([-second, first], -1) * sin.to(x.dtype)[:, None]


class Interpreted:
    """A kernel as an operator launches it; `wrap_triton` takes no interpreted ones. Fake tensors launch nothing."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            if not isinstance(args[0], FakeTensor):
                self._kernel[grid](*args, **constants)

        return launch


def interpreted(name: str) -> None:
    """Called in a process whose environment has TRITON_INTERPRET."""
    from tests.backends.kernels.test_attention import patch_interpreter

    patch_interpreter()
    torch.library.wrap_triton = Interpreted
    alone = {"pooling": check_pooling, "rotation": check_rotation}
    alone[name]("cpu") if name in alone else check_program(name, "cpu")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.parametrize(
    "name",
    [
        "pooling",
        "rotation",
        "qwen3",
        *(pytest.param(name, marks=REST) for name in ROTATED if name != "qwen3"),
    ],
)
def test_under_the_interpreter(name: str) -> None:
    run_interpreted(f"from tests.backends.kernels.test_use_kernels import interpreted; interpreted({name!r})")


@pytest.mark.gpu
def test_pooling_on_a_gpu() -> None:
    check_pooling("cuda")


@pytest.mark.gpu
def test_rotation_on_a_gpu() -> None:
    check_rotation("cuda")
