"""A linear layer in eight bits: how near it comes, and what it does at the ends of its range."""

from __future__ import annotations

import pytest
import torch

from headrace.ops.quantized import (
    FLOAT8,
    LARGEST,
    LINEAR_FP8,
    LINEAR_INT8,
    ROW_LEVELS,
    WEIGHT_LEVELS,
    round_to_float8,
    round_to_integers,
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_row_and_output_has_a_scale_of_its_own(dtype: torch.dtype) -> None:
    """Rows and outputs that are a thousand times larger or smaller than others lose no digit to them."""
    sizes = torch.tensor([1e-2, 1.0, 10.0], dtype=torch.float64)
    x, weight, bias = drawn(3, 64) * sizes[:, None], drawn(3, 64) * sizes.flip(0)[:, None], drawn(3)
    x, bias = x.to(dtype), bias.to(dtype)
    values, scale = round_to_float8(weight)
    found = LINEAR_FP8(x[None], values, scale[:, 0], bias)
    assert found.shape == (1, 3, 3)
    assert found.dtype == dtype
    exact = x.double() @ weight.t()
    # Each value is off by 2^-4 of itself at most, and by 2^-10 of the largest of its row where it is below 2^-6.
    size = x.double().norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((found[0].double() - exact - bias.double()).abs() <= 0.05 * size + 2 * bias.double().abs() * 2**-8).all()
    assert not torch.equal(found[0].double(), exact + bias.double())


def test_the_largest_of_a_row_stays_what_it_is() -> None:
    values, scale = round_to_float8(torch.tensor([[-3.0, 0.01, 1.5], [0.0, 0.0, 0.0]]))
    assert values.dtype == FLOAT8
    torch.testing.assert_close(values[0, 0].float() * scale[0, 0], torch.tensor(-3.0))
    assert values[0, 0] == -LARGEST
    assert (values[1].float() == 0).all()


def test_what_is_not_finite_stays_so() -> None:
    """It must be seen in the answer, and not come out as the largest number there is."""
    values, scale = round_to_float8(torch.ones(16, 16))
    for wrong in (torch.nan, torch.inf):
        x = torch.ones(2, 16)
        x[1, 3] = wrong
        found = LINEAR_FP8(x, values, scale[:, 0], None)
        assert torch.isfinite(found[0]).all()
        assert not torch.isfinite(found[1]).any()


def test_the_operator_is_one_of_torch() -> None:
    values, scale = round_to_float8(torch.ones(32, 16))
    given = (torch.ones(2, 3, 16), values, scale[:, 0], torch.ones(32))
    # Its other checks compare the operands, which torch's CPU cannot do in float8.
    torch.library.opcheck(LINEAR_FP8, given, test_utils="test_faketensor")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_integers_have_a_scale_a_row_and_an_output(dtype: torch.dtype) -> None:
    sizes = torch.tensor([1e-2, 1.0, 10.0], dtype=torch.float64)
    x, weight, bias = drawn(3, 64) * sizes[:, None], drawn(3, 64) * sizes.flip(0)[:, None], drawn(3)
    x, bias = x.to(dtype), bias.to(dtype)
    values, scale = round_to_integers(weight, WEIGHT_LEVELS)
    assert int(values.abs().max()) == WEIGHT_LEVELS
    found = LINEAR_INT8(x[None], values, scale[:, 0], bias)
    assert (found.shape, found.dtype) == ((1, 3, 3), dtype)
    exact = x.double() @ weight.t()
    # Off by half a step of each side at most, of 64 pairs whose errors are independent.
    step = x.double().abs().amax(1, keepdim=True) / ROW_LEVELS * weight.norm(dim=1)
    step = step + x.double().norm(dim=1)[:, None] * weight.abs().amax(1) / WEIGHT_LEVELS
    assert ((found[0].double() - exact - bias.double()).abs() <= 1.5 * step + 2 * bias.double().abs() * 2**-8).all()
    assert not torch.equal(found[0].double(), exact + bias.double())


def test_integers_of_what_is_not_finite_show_it() -> None:
    values, scale = round_to_integers(torch.ones(16, 16), WEIGHT_LEVELS)
    for wrong in (torch.nan, torch.inf):
        x = torch.ones(2, 16)
        x[1, 3] = wrong
        found = LINEAR_INT8(x, values, scale[:, 0], None)
        assert torch.isfinite(found[0]).all()
        assert not torch.isfinite(found[1]).any()


def test_the_operator_of_integers_is_one_of_torch() -> None:
    values, scale = round_to_integers(torch.ones(32, 16), WEIGHT_LEVELS)
    torch.library.opcheck(LINEAR_INT8, (torch.ones(2, 3, 16), values, scale[:, 0], torch.ones(32)))
