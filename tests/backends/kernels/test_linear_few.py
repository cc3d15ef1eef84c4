"""Linear layers of few rows: our kernel against float64, and the operator at every number of rows."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headrace import graphs, sample
from headrace.backends.kernels.linear_few.op import ALIGNED, FEW, few_multiplied, linear_any
from headrace.backends.kernels.linear_few.rows import SHORT, TABLES, embedding, layer, multiplied_rows, norm
from headrace.graphs.passes import run_graph_passes
from headrace.ir import Layout, Task
from tests.backends.kernels.test_attention import patch_interpreter, rmse, run_interpreted

FORMS = (("", False, False), ("silu", True, False), ("gelu", True, True), ("relu", False, False))


def drawn(rows: int, columns: int, depth: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * columns + depth)
    shapes = ((rows, depth), (columns, depth), (columns,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return tuple(one.to(device, dtype) for one in (x, weight * depth**-0.5, bias))


def exact(x: Any, weight: Any, bias: Any, kind: str, gated: bool, late: bool) -> Tensor:
    y = functional.linear(x, weight, bias)
    first, second = y.chunk(2, -1) if gated else (y, None)
    if late:
        assert second is not None
        first, second = second, first
    made = getattr(functional, kind)(first) if kind else first
    return made if second is None else made * second


def check(dtype: torch.dtype, device: str = "cpu", sizes: Any = ((38, 40), (14, 2100)), whole: bool = True) -> None:
    """Every form, with a bias and without, at every number of rows: float32's error, then rounded.

    Args:
        whole: each with each. Otherwise every second, so that each size still meets each form, each bias and each row.
    """
    for place, (size, form, biased) in enumerate(itertools.product(sizes, FORMS, (False, True))):
        (columns, depth), (kind, gated, late) = size, form
        for rows in range(1 if whole else 1 + (place + place // 2) % 2, FEW + 1, 1 if whole else 2):
            x, weight, bias = drawn(rows, columns, depth, dtype, device)
            given = (x, weight, bias if biased else None)
            wide, single = (
                [None if one is None else one.to(kept) for one in given] for kept in (torch.float64, torch.float32)
            )
            found, right = few_multiplied(*given, kind, gated, late), exact(*wide, kind, gated, late)
            own = rmse(exact(*single, kind, gated, late).to(dtype), right)
            assert found.dtype == dtype
            assert found.stride(0) % ALIGNED == 0
            assert rmse(found, right) <= 2 * own + 2e-7, f"{kind}, {gated}, {late}, {rows} rows of {columns}"


def check_layers(
    dtype: torch.dtype, device: str = "cpu", sizes: Any = ((38, 40), (20, 600)), whole: bool = True
) -> None:
    """Each form with what is added to it, by whichever kernel takes so many rows; `whole` is as of `check`."""
    for place, (size, form, biased) in enumerate(itertools.product(sizes, FORMS, (False, True))):
        (columns, depth), (kind, gated, late) = size, form
        if not whole and (place + place // 2) % 2:
            continue
        for rows in (FEW, FEW + 1, SHORT):
            x, weight, bias = drawn(rows, columns, depth, dtype, device)
            given = (x[None], weight, bias if biased else None)
            residual = drawn(rows, 3, columns // 2 if gated else columns, dtype, device)[0][None]
            wide, single = (
                [None if one is None else one.to(kept) for one in given] for kept in (torch.float64, torch.float32)
            )
            right = exact(*wide, kind, gated, late) + residual.double()
            own = rmse((exact(*single, kind, gated, late) + residual.float()).to(dtype), right)
            found = layer(*given, kind, gated, late, residual)
            assert (found.dtype, found.shape) == (dtype, right.shape)
            assert rmse(found, right) <= 2 * own + 2e-7, f"{kind}, {gated}, {late}, {rows} rows of {columns}"
            apart = x.t().contiguous().t()  # a row's elements are not side by side
            assert torch.equal(layer(apart, *given[1:], kind, gated, late, residual[0]), found[0])
            if rows <= FEW:  # which the other kernel could take too
                assert (
                    rmse(multiplied_rows(x, *given[1:], kind, gated, late, residual[0])[None], right) <= 2 * own + 2e-7
                )


def check_norms(dtype: torch.dtype, device: str = "cpu") -> None:
    """Layer norm of rows far from zero, and what is over the root of the mean square."""
    x, weight, _ = drawn(SHORT, 3, 600, dtype, device)
    for centered, offset, shift in itertools.product((False, True), (0.0, 1.0), (None, weight[1])):
        right, single = (
            normed((x + 3 * centered).to(kept), weight[0], shift, offset, centered)
            for kept in (torch.float64, torch.float32)
        )
        found = norm((x + 3 * centered)[None], weight[0], shift, 1e-5, offset, centered)[0]
        assert found.dtype == dtype
        assert rmse(found, right) <= 1.5 * rmse(single.to(dtype), right) + 1e-8


def check_tables(dtype: torch.dtype, device: str = "cpu") -> None:
    """A row of each of some tables, added in float32."""
    generator = torch.Generator().manual_seed(0)
    for count in range(1, TABLES + 1):
        tables = [torch.randn((7, 600), generator=generator).to(device, dtype) for _ in range(count)]
        ids = [torch.randint(7, (1, 5), generator=generator).to(device) for _ in range(count)]
        added = sum(table[one].float() for table, one in zip(tables, ids, strict=True))
        torch.testing.assert_close(embedding(*ids, *tables), torch.as_tensor(added).to(dtype), rtol=0, atol=0)


def normed(x: Tensor, weight: Tensor, shift: Tensor | None, offset: float, centered: bool) -> Tensor:
    """The formula in `x`'s dtype."""
    z = x - x.mean(-1, keepdim=True) * centered
    made = z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * (offset + weight.to(x.dtype))
    return made if shift is None else made + shift.to(x.dtype)


def check_operator(device: str) -> None:
    """Rows by the kernel and by the library, of a width that a library reads badly and of one that it reads well."""
    for rows, columns, leading in itertools.product((1, FEW, FEW + 1, 70), (16, 21), ((), (1,), (2, 3))):
        x, weight, bias = drawn(rows, columns, 24, torch.float32, device)
        x = x.expand(*leading, *x.shape).contiguous()
        made = linear_any(x, weight, bias)
        torch.testing.assert_close(made, functional.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            like = linear_any(*(mode.from_tensor(one) for one in (x, weight, bias)))
        assert (like.shape, like.stride()) == (made.shape, made.stride())


def interpreted(whole: bool = False) -> None:
    """What runs on the CPU; float16 is a GPU's to show."""
    patch_interpreter()
    for dtype in (torch.float32, torch.bfloat16):
        check(dtype, sizes=((38, 40), (14, 1040)), whole=whole)
        check_norms(dtype)
        check_tables(dtype)
    check_layers(torch.bfloat16, whole=whole)
    check_operator("cpu")


def launched(name: str, task: Task, layout: Layout) -> tuple[Any, Any]:
    """The program of a tiny model in bfloat16, and its graph for short rows."""
    from headrace.backends.kernels.linear_few.launch_rows import LaunchRows
    from headrace.backends.kernels.pipeline import with_kernels
    from headrace.frontend.trace import trace
    from headrace.lowering.pipeline import analyse, prepare
    from tests.tiny import build, checkpoint

    kind = "AutoModelForCausalLM" if task is Task.GENERATE else "AutoModel"
    traced = trace(checkpoint(build(name, kind).to(torch.bfloat16)))
    program = prepare(analyse(traced.program, traced.behaviour), task, layout)
    module = graphs.flat_module(with_kernels(program, "sm90"))
    run_graph_passes(module.graph, (LaunchRows(),))
    module.recompile()
    return program, module


# Norms of a layer; Gemma's are behind its halves too. Those of queries and keys are rotations'.
NORMS = {"bert": 2, "modernbert": 2, "qwen3": 2, "gemma3": 4}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.parametrize("name", NORMS)
def test_a_graph_of_launches(name: str) -> None:
    """Every layer and norm is a launch, with the residual that is added to it."""
    program, module = launched(name, Task.EMBED, Layout.PACKED)
    called = [node for node in module.graph.nodes if node.op == "call_function"]
    layers, norms = ([node for node in called if node.target is target] for target in (layer, norm))
    depth = len(program.nodes.attention)
    assert (len(layers), len(norms)) == (4 * depth, NORMS[name] * depth + 1)
    assert sum(node.args[-1] is not None for node in layers) == (0 if name == "gemma3" else 2 * depth)
    left = {torch.ops.aten.linear.default, torch.ops.aten.pow.Tensor_Scalar, torch.ops.aten.embedding.default}
    assert sum(node.target is embedding for node in called) == 1
    assert not [node for node in called if node.target in left]


def interpreted_graph(name: str) -> None:
    """Answers as near to float32's as the plain graph in bfloat16 is; called as `interpreted` is."""
    from tests.backends.kernels.test_use_kernels import Interpreted

    patch_interpreter()
    torch.library.wrap_triton = Interpreted
    program, module = launched(name, Task.EMBED, Layout.PACKED)
    inputs = sample.row(program, (5, 3, 1, 7))
    (wide,), _ = graphs.run(program.graph, inputs, widened=torch.float32)
    (plain,), _ = graphs.run(program.graph, inputs)
    (found,) = module(*(inputs[one] for one in program.signature.input_names))
    assert rmse(found, wide.double()) <= 1.5 * rmse(plain, wide.double())


@pytest.mark.slow(reason="another graph of launches: bert's is interpreted by default")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_another_graph_under_the_interpreter() -> None:
    run_interpreted("from tests.backends.kernels.test_linear_few import *; interpreted_graph('qwen3')")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_under_the_interpreter() -> None:
    """Each kernel, then a model's graph of them."""
    run_interpreted("from tests.backends.kernels.test_linear_few import *; interpreted(); interpreted_graph('bert')")


@pytest.mark.slow(reason="each size with each form, bias and number of rows: by default every second of these")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_each_with_each_under_the_interpreter() -> None:
    run_interpreted("from tests.backends.kernels.test_linear_few import interpreted\ninterpreted(whole=True)")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    check(dtype, "cuda", ((6, 40), (14, 2100), (1024, 2048), (4096, 1024)))
    check_operator("cuda")
    check_norms(dtype, "cuda")
    check_tables(dtype, "cuda")
    if dtype is not torch.float32:
        check_layers(dtype, "cuda", ((38, 40), (768, 768), (3072, 768), (72, 3080)))
