"""Made-up inputs: what would leak stands in the padding, and every text holds the token that a head looks for."""

from __future__ import annotations

import torch

from headrace import sample
from headrace.ir import OFFSETS, Limits, Positions, PositionSource
from tests.synthetic import facts, token_inputs

WHERE = Positions(PositionSource.INPUT, 2)


def test_a_batch_is_padded_wherever_it_is_said() -> None:
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.bool)
    names = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
    found = sample.batch(facts(inputs=token_inputs(*names), positions=WHERE, marker=9), real)
    assert tuple(found) == names
    assert found["attention_mask"].tolist() == real.long().tolist()
    assert found["position_ids"].tolist() == [[2, 3, 4, 2], [2, 2, 3, 4]]
    assert found["input_ids"].tolist() == [[3, 4, 9, 1], [1, 8, 10, 9]]
    assert not found["token_type_ids"].any()


def test_seeds_give_other_tokens() -> None:
    one, other = (sample.one(facts(), 5, seed=seed)["input_ids"] for seed in (0, 1))
    assert one.shape == (1, 5)
    assert (one != other).all()


def test_a_row_keeps_within_the_position_table() -> None:
    """A sample may be longer than what the model reads."""
    inputs = token_inputs("input_ids", "position_ids", OFFSETS)
    found = sample.even_row(facts(inputs=inputs, positions=WHERE, limits=Limits(3, "made by hand")), 8, 2)
    assert found[OFFSETS].tolist() == [0, 4, 8]
    assert found["position_ids"].tolist() == [[2, 3, 4, 2, 2, 3, 4, 2]]
    assert [values.dtype for values in found.values()] == [torch.int64, torch.int64, torch.int32]
