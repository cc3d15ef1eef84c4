"""Linear layers of few rows: our kernel against float64, and the operator at every number of rows."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.kernels.linear_few.op import ALIGNED, FEW, few_multiplied, linear_any
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


def check(dtype: torch.dtype, device: str = "cpu", sizes: Any = ((38, 40), (14, 2100))) -> None:
    """Every form, with a bias and without, at every number of rows: float32's error, then rounded."""
    for (columns, depth), (kind, gated, late), biased in itertools.product(sizes, FORMS, (False, True)):
        for rows in range(1, FEW + 1):
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


def interpreted() -> None:
    """What runs on the CPU."""
    patch_interpreter()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check(dtype)
    check_operator("cpu")


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


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_under_the_interpreter() -> None:
    run_interpreted("from tests.backends.kernels.test_linear_few import interpreted\ninterpreted()")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    check(dtype, "cuda", ((6, 40), (14, 2100), (1024, 2048), (4096, 1024)))
    check_operator("cuda")
