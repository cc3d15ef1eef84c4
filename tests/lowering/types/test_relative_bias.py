"""Biases of the distance between query and key are told from others by the values that they take."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ir import BiasKind, MaskKind, Window
from headrace.lowering.types.relative_bias import Distance, of_distance
from headrace.ops.packed import distance_bias

CAUSAL, BIDIRECTIONAL = (MaskKind.CAUSAL, Window(-1, 0)), (MaskKind.BIDIRECTIONAL, Window())
LENGTH = 40
PLACE = torch.arange(LENGTH)
DISTANCE = PLACE[None, :] - PLACE[:, None]
SLOPES = torch.tensor([0.5, 0.25])


def table(reach: int) -> Tensor:
    return torch.randn(2, 2 * reach + 1, generator=torch.Generator().manual_seed(0))


def read(bias: Tensor, mask: MaskKind, window: Window, whole: bool = False, free: bool = True) -> Distance | None:
    return of_distance(bias, mask, window, free=free, whole=whole)


def assert_same_weights(found: Distance, bias: Tensor, mask: MaskKind) -> None:
    """What was found gives the attention weights that the bias gives."""
    hidden = DISTANCE > 0 if mask is MaskKind.CAUSAL else torch.zeros_like(DISTANCE, dtype=torch.bool)
    again = distance_bias(found.values, found.kind, *[torch.arange(bias.shape[1])] * 2)[0]
    one, other = (x.masked_fill(hidden, -torch.inf).softmax(-1) for x in (bias, again))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_alibi_over_absolute_positions_is_alibi_under_a_causal_mask() -> None:
    """Bloom adds slope * key, which is -slope * distance but for a constant along each row."""
    bias = (SLOPES[:, None, None] * PLACE).expand(-1, LENGTH, -1)
    found = read(bias, *CAUSAL)
    assert found is not None
    assert found.kind is BiasKind.ALIBI
    torch.testing.assert_close(found.values, SLOPES)
    assert_same_weights(found, bias, MaskKind.CAUSAL)


def test_the_same_is_no_alibi_where_queries_look_ahead() -> None:
    """There it is a table as long as the text, since later keys gain by it."""
    bias = (SLOPES[:, None, None] * PLACE).expand(-1, LENGTH, -1)
    assert read(bias, *BIDIRECTIONAL) is None
    found = read(bias, *BIDIRECTIONAL, whole=True)
    assert found is not None
    assert (found.kind, found.values.shape) == (BiasKind.RELATIVE, (2, 2 * LENGTH - 1))


def test_symmetric_alibi() -> None:
    found = read(-SLOPES[:, None, None] * DISTANCE.abs(), *BIDIRECTIONAL)
    assert found is not None
    assert found.kind is BiasKind.ALIBI
    torch.testing.assert_close(found.values, SLOPES)


def test_buckets_are_cut_where_the_last_begins() -> None:
    buckets = table(7)
    bias = buckets[:, DISTANCE.clamp(-7, 7) + 7]
    found = read(bias, *BIDIRECTIONAL)
    assert found is not None
    assert (found.kind, found.values.shape) == (BiasKind.RELATIVE, (2, 15))
    assert_same_weights(found, bias, MaskKind.BIDIRECTIONAL)


def test_of_a_causal_mask_later_keys_do_not_count() -> None:
    bias = table(39)[:, DISTANCE.clamp(-7, 39) + 39]
    found = read(bias, *CAUSAL)
    assert found is not None
    assert found.values.shape == (2, 15)
    assert_same_weights(found, bias, MaskKind.CAUSAL)


def test_buckets_that_may_go_on_past_what_was_evaluated_are_left_alone() -> None:
    """The last one must have lasted as long as all before it."""
    bias = table(25)[:, DISTANCE.clamp(-25, 25) + 25]
    assert read(bias, *BIDIRECTIONAL) is None
    assert read(bias, *BIDIRECTIONAL, whole=True) is not None


def test_a_constant_along_a_row_counts_beside_sinks() -> None:
    bias = (SLOPES[:, None, None] * PLACE).expand(-1, LENGTH, -1)
    assert read(bias, *CAUSAL, free=False) is None


def test_slopes_rounded_to_bfloat16_are_no_function_of_the_distance() -> None:
    """Falcon rounds slope * position; far from the start neighbours share a value."""
    place = torch.arange(600)
    bias = (0.7 * place.bfloat16()).float()[None, None].expand(1, 600, -1)
    assert read(bias, *CAUSAL) is None


def test_what_depends_on_more_than_the_distance() -> None:
    assert read(torch.randn(2, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)), *CAUSAL) is None
