"""Plans: every request once, like lengths together, nothing wider than the model or the budget admits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ir import Limits, PaddingRule, Positions, PositionSource, Program
from headrace.runtime.engine.padded_batch import PADDED, assemble, bucket, plan
from headrace.runtime.text.encoded import Encoded, Tokens
from tests.synthetic import facts as made_program
from tests.synthetic import token_inputs

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def of(padding: PaddingRule = PaddingRule.EXACT, longest: int | None = 300, **facts: object) -> Program:
    return made_program(padding=padding, limits=Limits(longest, "a test"), **facts)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 9) | st.none(), st.sampled_from(list(PaddingRule)))
def test_every_request_runs_once(lengths: list[int], batch_size: int | None, padding: PaddingRule) -> None:
    steps = list(plan(lengths, of(padding), step_tokens=512, batch_size=batch_size))
    assert sorted(i for step in steps for i in step.requests) == list(range(len(lengths)))
    for step in steps:
        assert step.length >= max(lengths[i] for i in step.requests)
        assert batch_size is None or len(step.requests) <= batch_size
        if padding is PaddingRule.UNPADDED:
            assert {lengths[i] for i in step.requests} == {step.length}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 200))
def test_no_step_passes_the_budget(lengths: list[int], budget: int) -> None:
    assert all(
        len(step.requests) * step.length <= budget for step in plan(lengths, of(), step_tokens=512, token_budget=budget)
    )


def test_longest_first_and_order_kept_among_equals() -> None:
    steps = plan([3, 300, 5, 297, 4], of(), step_tokens=1024, batch_size=2)
    assert [step.requests.tolist() for step in steps] == [[1, 3], [0, 2], [4]]


@settings(max_examples=60, deadline=None)
@given(LENGTHS)
def test_a_step_of_its_own_is_cheaper_than_much_padding(lengths: list[int]) -> None:
    steps = list(plan(lengths, of(), step_tokens=512))
    widths = bucket(lengths, 300)
    assert all(sum(step.length - widths[step.requests]) <= 512 // PADDED for step in steps)
    assert len(list(plan([100] * 4, of(), step_tokens=512))) == 1


@pytest.mark.parametrize(
    ("length", "longest", "width"), [(1, 300, 8), (8, 300, 8), (257, 512, 320), (17, 18, 18), (1, 4, 4)]
)
def test_bucket_never_passes_the_limit(length: int, longest: int, width: int) -> None:
    """P7's trap: a bucket of 24 over a position table of 20 rows."""
    assert bucket(length, longest) == width


def test_padding_takes_the_first_position_and_the_mask_says_what_it_is() -> None:
    made = of(
        inputs=token_inputs("input_ids", "attention_mask", "position_ids"),
        positions=Positions(PositionSource.INPUT, 2, 20),
    )
    (step,) = plan([2, 3], made, step_tokens=512)
    inputs = assemble(Tokens.of([Encoded(np.array([7, 8])), Encoded(np.array([4, 5, 6]))]), step.length, made)
    assert set(inputs) == {"input_ids", "attention_mask", "position_ids"}
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]]
    assert inputs["position_ids"].tolist() == [[2, 3, 2, 2, 2, 2, 2, 2], [2, 3, 4, 2, 2, 2, 2, 2]]
    assert inputs["input_ids"].tolist() == [[7, 8, 0, 0, 0, 0, 0, 0], [4, 5, 6, 0, 0, 0, 0, 0]]


def test_a_model_without_a_limit_is_bucketed_too() -> None:
    assert [step.length for step in plan([9], of(longest=None), step_tokens=512)] == [16]
