"""Every kernel of ours in every form that tests try, executed as gfx942's machine code and held against float64.

A bound is twice the error of plain float32 arithmetic, rounded to the dtype: the kernels' own tests have the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.backends.kernels.tuning import Product
from headrace.ir import PoolKind
from headrace.ops.packed import pool_packed
from headrace.ops.quantized import FLOAT8
from tests.backends.kernels import test_attention, test_linear_activation, test_paged
from tests.backends.kernels.test_attention import rmse
from tests.backends.kernels.test_use_kernels import LENGTHS, turned
from tests.backends.rocm_emulator.kernels import Change, Emulated, Journal

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LENGTH = 64  # of a sequence, that blocks are chosen for
DTYPES = (FP32, BF16, FP16)
# The target's own choice on gfx942 is a library's product and the activation behind it; this is for the kernel's sake.
SMALL = Product(32, 32, 32, warps=4, stages=1, band=2)


@dataclass(frozen=True)
class Outcome:
    """What an execution gave.

    Attributes:
        error: the root of the mean square of its distance from float64.
        bound: the largest error that passes.
        largest: the largest distance of one element.
    """

    journal: Journal
    error: float
    bound: float
    largest: float

    @property
    def passes(self) -> bool:
        """Whether it is near enough."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Case:
    """One form of one kernel, or of several that work together."""

    kernel: str
    form: str
    run: Callable[[], Outcome]

    def __str__(self) -> str:
        """Its name, as a test's."""
        return f"{self.kernel} {self.form}"


def every() -> Iterator[Case]:
    """All of them."""
    for name, dtype in itertools.product(test_attention.CASES, DTYPES):
        yield Case("attend_tiles", f"{name}, {_said(dtype)}", partial(attention, name, dtype))
    for name, dtype in itertools.product(test_paged.CASES, (FP32, BF16)):
        yield Case("attend_paged", f"{name}, {_said(dtype)}", partial(paged, name, dtype))
    for kind, dtype in itertools.product(PoolKind, DTYPES):
        yield Case("reduce_sequences", f"{kind.value}, {_said(dtype)}", partial(pooling, kind, dtype))
    for normed, width, dtype in itertools.product((False, True), (64, 80), DTYPES):
        form = f"{width}{', with the norm' * normed}, {_said(dtype)}"
        yield Case("rotate_rows", form, partial(rotation, normed, width, dtype))
    for case, dtype in itertools.product(test_linear_activation.CASES, (BF16, FP16)):
        form = f"{case.kind}{', gated' * case.gated}{', late' * case.late}, {_said(dtype)}"
        yield Case("activate_rows", form, partial(activation, case, dtype))
        yield Case("multiply_activate", form, partial(product, case, dtype))
        yield Case("round_rows", form, partial(rounding, case, dtype))


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _outcome(journal: Journal, found: Tensor, exact: Tensor, plain: Tensor) -> Outcome:
    """Held against float64; `plain` is float32's, rounded to the dtype.

    float32 of ours multiplies and adds in one rounding where plain arithmetic takes two, so that what is exact there (a
    weight that is one) is off by one rounding here.
    """
    dtype = found.dtype
    once = torch.finfo(dtype).eps / 2 * float(exact.square().mean().sqrt()) if dtype == FP32 else 1e-8
    largest = float((found.double() - exact).abs().max())
    return Outcome(journal, rmse(found, exact), 2 * rmse(plain.to(dtype), exact) + once, largest)


def attention(name: str, dtype: torch.dtype, change: Change | None = None) -> Outcome:
    """Packed attention: the list of tiles, and the attention over it; rows of no sequence must be zeros."""
    from headrace.backends.kernels.attention import op
    from headrace.backends.kernels.attention.kernel import attend_tiles, list_tiles

    case, journal = test_attention.CASES[name], Journal()
    given = test_attention.inputs(case, test_attention.SHORT, dtype, "cpu")
    form = op.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    tuned = op.tuning_for(given.q, given.v, LENGTH, form, "gfx942")
    rows = op.tile_rows(given.q, given.k, tuned)
    tiles = op.listed(given.cu_seqlens, given.q.shape[0], rows, Emulated(list_tiles, journal))
    attend = Emulated(attend_tiles, journal, change)
    found = op.attended(*given[:3], tiles, tuned, form, given.sinks, given.bias, attend)
    assert not found[sum(test_attention.SHORT) :].any(), "rows of no sequence are zeros"
    return _outcome(journal, found, *(test_attention.direct(case, given, kind) for kind in (torch.float64, FP32)))


def paged(name: str, dtype: torch.dtype) -> Outcome:
    """A step over paged caches: decoding, prefill and pieces of it side by side; and what they hold behind it."""
    from headrace.backends.kernels.attention import op, paged
    from headrace.backends.kernels.attention.kernel import list_tiles

    case, journal = test_paged.CASES[name], Journal()
    given = test_paged.inputs(case, dtype)
    exact, plain, mine = (given.to(kind) for kind in (torch.float64, FP32, dtype))
    right, near = (test_paged.by_definition(case, one) for one in (exact, plain))
    form = op.Form(case.dim**-0.5, case.kind, case.window, case.softcap, case.bias)
    tuned = paged.paged_tuning(mine.q, mine.v_cache, "gfx942", case.coded)
    rows = op.tile_rows(mine.q, mine.k_cache[0], tuned)
    tiles = op.listed(mine.cu_seqlens, mine.q.shape[0], rows, Emulated(list_tiles, journal), named=True)
    kernels = paged.Kernels(*(Emulated(kernel, journal) for kernel in paged.Kernels()))
    kept = test_paged.kept_of(case, mine)
    if mine.k is not None:
        paged.written(mine.k, mine.v, kept, mine.slots, kernels)
    found = paged.attended(
        mine.q, kept, mine.blocks, mine.context, tiles, tuned, form, mine.sinks, mine.bias, kernels
    )  # fmt: skip
    for cache, wanted in zip((*mine[3:5], *mine[-2:]), (*plain[3:5], *plain[-2:]), strict=True):
        if cache is not None and wanted is not None:
            torch.testing.assert_close(cache, wanted.to(cache.dtype), atol=0, rtol=0, equal_nan=True)
    return _outcome(journal, found, right, near)


def pooling(kind: PoolKind, dtype: torch.dtype, change: Change | None = None) -> Outcome:
    """Of each kind, with filling behind the last sequence, which may hold anything; an empty one gives zeros."""
    from headrace.backends.kernels.pooling import reduce_sequences, reduced

    journal, tokens = Journal(), sum(LENGTHS)
    bounds = torch.tensor([0, *itertools.accumulate((*LENGTHS, 0))], dtype=torch.int32)
    hidden = torch.randn(1, tokens + 3, 150, generator=torch.Generator().manual_seed(0)).to(dtype)
    hidden[:, tokens:] = torch.nan
    found = reduced(hidden, bounds, kind.value, Emulated(reduce_sequences, journal, change))
    assert not found[-1].any(), "an empty sequence gives zeros"
    exact, plain = (pool_packed(hidden[:, :tokens].to(wide), bounds[:-1], kind) for wide in (torch.float64, FP32))
    return _outcome(journal, found[:-1], exact, plain)


def rotation(normed: bool, width: int, dtype: torch.dtype) -> Outcome:
    """Of the halves of each head, and the norm before it."""
    from headrace.backends.kernels.rotary.op import rotate_rows, rotated

    journal, generator = Journal(), torch.Generator().manual_seed(0)
    x, cos, sin = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((41, 3, width), (41, width), (41, width))
    )
    weight = torch.randn(width, generator=generator).to(dtype) if normed else None
    found = rotated(x, cos, sin, weight, 1e-6, Emulated(rotate_rows, journal))
    return _outcome(journal, found, *(turned(x.to(kind), cos, sin, weight) for kind in (torch.float64, FP32)))


def activation(case: Any, dtype: torch.dtype) -> Outcome:
    """Of a finished product."""
    from headrace.backends.kernels.linear_activation.kernel import activate_rows
    from headrace.backends.kernels.linear_activation.op import activated

    journal = Journal()
    y = torch.randn(19, 72 * (1 + case.gated), generator=torch.Generator().manual_seed(0)).to(dtype)
    found = activated(y, *case, Emulated(activate_rows, journal))
    return _outcome(journal, found, *(case.of(y.to(kind)) for kind in (torch.float64, FP32)))


def product(case: Any, dtype: torch.dtype) -> Outcome:
    """A linear layer with its activation, its tiles not full."""
    from headrace.backends.kernels.linear_activation.kernel import multiply_activate
    from headrace.backends.kernels.linear_activation.op import multiplied

    journal, generator = Journal(), torch.Generator().manual_seed(0)
    shapes = ((50, 40), (72 * (1 + case.gated), 40), (72 * (1 + case.gated),))
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    found = multiplied(*given, *case, SMALL, Emulated(multiply_activate, journal))
    return _outcome(
        journal,
        found,
        *(case.of(functional.linear(*(one.to(kind) for one in given))) for kind in (torch.float64, FP32)),
    )


def rounding(case: Any, dtype: torch.dtype) -> Outcome:
    """To eight bits, a row with its scale: each value within half a step of float8, which is the bound here."""
    from headrace.backends.kernels.quantized_activation.op import round_activation, round_rows

    journal = Journal()
    y = torch.randn(5, 48 * (1 + case.gated), generator=torch.Generator().manual_seed(0)).to(dtype)
    y[3] = 0
    values, scale = round_activation(y, *case, Emulated(round_rows, journal))
    assert values.dtype == FLOAT8
    exact, found = case.of(y.double()), values.double() * scale.double()
    steps = (found - exact).abs() / (exact.abs() * 2**-4 + scale.double() * 2**-10 + 1e-6)
    return Outcome(journal, float(steps.max()), 1.0, float((found - exact).abs().max()))
