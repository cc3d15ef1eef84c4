"""Packed steps: every request once, rows within the budget, and answers that equal the oracle's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.backends.cpu import Cpu
from headrace.backends.reference import Reference
from headrace.errors import HeadraceWarning, OutOfMemoryError
from headrace.ir import OFFSETS, Layout, Positions, PositionSource
from headrace.runtime.engine import padded_batch
from headrace.runtime.engine.engine import Engine
from headrace.runtime.engine.packed_batch import assemble, plan, row_of, rows
from headrace.runtime.text.encoded import Encoded, Tokens
from headrace.runtime.text.prefetch import PACKED
from headrace.runtime.tools.inspect.report import explain
from tests.conformance import oracle
from tests.synthetic import facts, token_inputs
from tests.tiny import VOCABULARY

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def made(*names: str, offset: int = 0) -> Any:
    inputs = token_inputs(*names, OFFSETS)
    return facts(inputs=inputs, layout=Layout.PACKED, positions=Positions(PositionSource.INPUT, offset))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 9) | st.none())
def test_every_request_runs_once(lengths: list[int], batch_size: int | None) -> None:
    steps = list(plan(lengths, made(), step_tokens=512, batch_size=batch_size))
    assert sorted(i for step in steps for i in step.requests) == list(range(len(lengths)))
    for step in steps:
        assert sum(lengths[i] for i in step.requests) <= step.length <= 512
        assert batch_size is None or len(step.requests) <= batch_size


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 200))
def test_no_row_passes_the_users_budget(lengths: list[int], budget: int) -> None:
    assert all(step.length <= budget for step in plan(lengths, made(), step_tokens=512, token_budget=budget))


def test_a_longer_request_has_a_row_of_its_own() -> None:
    steps = list(plan([3, 5000, 4], made(), step_tokens=512))
    assert [step.requests.tolist() for step in steps] == [[1], [2, 0]]
    assert steps[0].length == 5120


@pytest.mark.parametrize(
    ("tokens", "row"),
    [(1, 16), (17, 32), (2048, 2048), (2049, 2176), (15360, 16384), (16384, 16384), (16385, 16512)],
)
def test_few_rows(tokens: int, row: int) -> None:
    assert row_of(tokens, 16384) == row


def test_what_a_long_one_leaves_is_filled_by_shorter_ones() -> None:
    steps = plan([60, 50, 30, 9, 4, 9], made(), step_tokens=100)
    assert [step.requests.tolist() for step in steps] == [[0, 2, 3], [1, 5, 4]]


def greedy(lengths: list[int], budget: int, most: int) -> list[list[int]]:
    """The plan, a request at a time: the longest, then again and again the longest that still fits."""
    order, found = sorted(range(len(lengths)), key=lambda request: (-lengths[request], request)), []
    while order:
        held = [order.pop(0)]
        while len(held) < most:
            room = budget - sum(lengths[request] for request in held)
            if (fits := next((request for request in order if lengths[request] <= room), None)) is None:
                break
            order.remove(fits)
            held.append(fits)
        found.append(held)
    return found


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 9) | st.none(), st.integers(1, 600))
def test_requests_of_one_length_are_taken_together_as_one_at_a_time(
    lengths: list[int], batch_size: int | None, budget: int
) -> None:
    steps = plan(lengths, made(), step_tokens=budget, batch_size=batch_size)
    assert [step.requests.tolist() for step in steps] == greedy(lengths, budget, batch_size or len(lengths))


def test_positions_begin_anew_and_filling_belongs_to_none() -> None:
    """P8: the RoBERTa family starts past its padding id in every sequence."""
    program = made("input_ids", "position_ids", "token_type_ids", offset=2)
    (step,) = plan([2, 3], program, step_tokens=512)
    requests = Tokens.of([Encoded(np.array([7, 8]), np.array([0, 1])), Encoded(np.array([4, 5, 6]))])
    inputs = assemble(requests.take(step.requests), step.length, program)
    assert inputs["input_ids"].tolist() == [[4, 5, 6, 7, 8] + [0] * 11]
    assert inputs["position_ids"].tolist() == [[2, 3, 4, 2, 3] + [2] * 11]
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 1] + [0] * 11]
    assert inputs[OFFSETS].tolist() == [0, 3, 5]
    assert inputs[OFFSETS].dtype == np.int32


def test_one_request_has_an_empty_neighbour() -> None:
    program = made("input_ids")
    (step,) = plan([3], program, step_tokens=512)
    inputs = assemble(Tokens.of([Encoded(np.array([7, 8, 9]))]), step.length, program)
    assert inputs[OFFSETS].tolist() == [0, 3, 3]
    output = np.arange(32).reshape(1, 16, 2)
    assert [one.tolist() for one in rows(step, np.array([3]), output, True)] == [output[0, :3].tolist()]
    assert [one.tolist() for one in rows(step, np.array([3]), output[0, :2], False)] == [[0, 1]]


CASES = {
    "xlm-roberta": ("AutoModel", "embed"),
    "modernbert": ("AutoModelForTokenClassification", "token_classify"),
    "gemma3-bidirectional": ("AutoModel", "embed"),
    "qwen3": ("AutoModel", "embed"),
    "llama": ("AutoModelForSequenceClassification", "classify"),
    "gpt-oss": ("AutoModel", "embed"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_engine_answers_as_the_oracle(name: str, analysed: Any, tiny: Any) -> None:
    """D2: the packed lowering on the reference target, one request and a batch of mixed lengths."""
    head, task = CASES[name]
    engine = Engine(analysed(name, head), Reference(Layout.PACKED))
    requests = oracle.prompts(engine.program.facts.limits.length, VOCABULARY)
    encoded = [Encoded(np.array(ids)) for ids in requests]
    assert engine.lane(task).program.form.layout is Layout.PACKED
    read = oracle.logits if task != "embed" else oracle.pooled(str(engine.program.facts.pooling.kinds[0]))
    oracle.require_close(engine.run(task, encoded), tiny(name, head), requests, read)
    alone = [engine.run(task, [one])[0] for one in encoded]
    oracle.require_close(alone, tiny(name, head), requests, read)


def test_explain_names_the_layout(analysed: Any) -> None:
    engine = Engine(analysed("xlm-roberta"), Reference(Layout.PACKED))
    engine.lane("embed")
    assert "packed: sequences follow one another" in explain(engine.described())
    told = engine.program.with_(layout_why="Its state crosses.")
    assert "padded: Its state crosses." in explain(told)


def test_the_compiled_packed_program(analysed: Any, tiny: Any) -> None:
    """The CPU target runs packed programs too, by the operators' own definitions."""
    backend = Cpu()
    backend.layout = Layout.PACKED
    engine = Engine(analysed("xlm-roberta"), backend)
    requests = oracle.prompts(engine.program.facts.limits.length, VOCABULARY)
    answers = engine.run("embed", [Encoded(np.array(ids)) for ids in requests])
    oracle.require_close(answers, tiny("xlm-roberta"), requests, oracle.pooled("mean"))


def test_requests_that_fill_no_row_wait_for_those_that_come_after(analysed: Any) -> None:
    """Each part's first row is begun at once; the last, if there is room in it, when no more come."""
    encoded = [Encoded(np.arange(n) % 90) for n in [60] * 40 + [3] * 5 + [50] * 30 + [7, 9]]
    parts = [encoded[:40], encoded[40:45], encoded[45:75], encoded[75:]]
    engine = Engine(analysed("xlm-roberta"), Reference(Layout.PACKED))
    rows = [list(places) for places, _ in engine.answered("embed", parts, len(encoded))]
    assert sorted(place for row in rows for place in row) == list(range(len(encoded)))
    assert [len(row) for row in rows] == [17, 17, 11, 20, 12]
    assert {*range(34, 45)} <= {*rows[2]}
    for one, other in zip(engine.run_parts("embed", parts, 77), engine.run("embed", encoded), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_padded_requests_of_like_length_meet_from_all_over_the_list(analysed: Any, tiny: Any) -> None:
    """Ids that take no time to read are planned as a whole, though packed ones of so many tokens come in parts."""
    requests = [np.arange(n) % 90 for n in [3, 60, 30, 7] * 200]
    model = headrace.compile(tiny("xlm-roberta"), target="reference", pooling="mean")
    before = model.engine.lane("embed").executable.calls
    model(requests, task="embed")
    lengths, program = [len(one) for one in requests], model.engine.lane("embed").program
    planned = padded_batch.plan(lengths, program, step_tokens=model.engine.backend.step_tokens)
    assert sum(lengths) > PACKED.first
    assert model.engine.lane("embed").executable.calls - before == len(list(planned))


def test_an_error_ends_the_reading(analysed: Any) -> None:
    ended: list[bool] = []

    def parts() -> Iterator[list[Encoded]]:
        try:
            yield [Encoded(np.arange(60))]
            yield [Encoded(np.arange(9))]
        finally:
            ended.append(True)

    engine = Engine(analysed("xlm-roberta"), Small(Layout.PACKED, 32))
    with pytest.raises(OutOfMemoryError) as refused:
        engine.run_parts("embed", parts(), 2)
    assert ended, refused


class Small(Reference):
    """A device whose memory holds so many tokens at once."""

    def __init__(self, layout: Layout, most: int) -> None:
        super().__init__(layout)
        self._most = most

    def feed(self, inputs: Any) -> Any:
        if inputs["input_ids"].size > self._most:
            raise OutOfMemoryError(f"Tried to allocate {inputs['input_ids'].size} tokens")
        return super().feed(inputs)


@pytest.mark.parametrize("layout", [Layout.PADDED, Layout.PACKED])
def test_out_of_memory_halves_the_budget_once_and_goes_on(layout: Layout, analysed: Any) -> None:
    """Every request is answered as before, with one warning, and later calls begin with the half."""
    requests = [Encoded(np.arange(n) % 90) for n in [7, 60, 60, 3] * 8]
    wanted = Engine(analysed("xlm-roberta"), Reference(layout)).run("embed", requests)
    engine = Engine(analysed("xlm-roberta"), Small(layout, 600))
    engine.lane("embed")
    with pytest.warns(HeadraceWarning, match="A step of 1024 tokens.*goes on with 512") as caught:
        found = engine.run("embed", requests)
    assert len(caught) == 1
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.run("embed", requests)


def test_a_request_that_cannot_fit_is_refused_and_others_go_on(analysed: Any) -> None:
    engine = Engine(analysed("xlm-roberta"), Small(Layout.PACKED, 32))
    with pytest.raises(OutOfMemoryError, match=r"Request 1, of 60 tokens, .* ran alone"):
        engine.run("embed", [Encoded(np.arange(n)) for n in (3, 60)], batch_size=1)
    assert len(engine.run("embed", [Encoded(np.arange(3))])) == 1


def test_memory_that_does_not_hold_half_is_told(analysed: Any) -> None:
    engine = Engine(analysed("xlm-roberta"), Small(Layout.PACKED, 100))
    with pytest.warns(HeadraceWarning), pytest.raises(OutOfMemoryError, match="512 tokens, half of what was planned"):
        engine.run("embed", [Encoded(np.arange(30))] * 64)
