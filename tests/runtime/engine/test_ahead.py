"""Steps that begin before the tokens of the last are read: the same tokens, and nothing held by who ended meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headrace
from headrace.backends.inductor.tensors import OnTensors
from headrace.runtime.generate.sampler import Sampler

NEW = 10
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [20, 30, 40], list(range(50, 70))]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which steps begin and are read."""
    seen: list[str] = []
    begin, finish = Sampler.begin, Sampler.finish

    def began(self: Sampler, *given: Any) -> Any:
        seen.append("begun")
        return begin(self, *given)

    def finished(self: Sampler, chosen: Any) -> None:
        seen.append("read")
        finish(self, chosen)

    monkeypatch.setattr(OnTensors, "ahead", True)
    monkeypatch.setattr(Sampler, "begin", began)
    monkeypatch.setattr(Sampler, "finish", finished)
    return seen


@pytest.fixture(scope="module")
def right(compiled: Any) -> list[list[int]]:
    model = compiled("llama", "AutoModelForCausalLM", "reference", task="generate", pooling="last")
    return [list(one.token_ids) for one in model.generate(TEXTS, max_new_tokens=NEW)]


@pytest.fixture
def model(events: list[str], tiny: Any) -> Any:
    eager = tiny("llama", "AutoModelForCausalLM")
    return headrace.compile(eager, target="reference", task="generate", pooling="last")


def held(model: Any) -> int:
    used: int = model.engine.decoding().lane.state.store.used()
    return used


def test_the_next_step_begins_first(model: Any, right: list[list[int]], events: list[str]) -> None:
    found = model.generate(TEXTS, max_new_tokens=NEW)
    assert [list(one.token_ids) for one in found] == right
    assert events[:6] == ["begun", "begun", "read", "begun", "read", "begun"]
    assert events.count("begun") == events.count("read") == NEW
    assert not held(model)
    assert model.engine.decoding()._flight is None


def test_lengths_that_are_known_end_a_row_in_time(model: Any, right: list[list[int]], events: list[str]) -> None:
    """No step is run for a text that its number of tokens ends."""
    calls = model.engine.decoding().lane.executable
    model.generate([TEXTS[0]], max_new_tokens=3)
    assert calls.calls == 3


def test_a_text_that_a_token_ends_is_not_longer(model: Any, right: list[list[int]]) -> None:
    """Which token ends it is known when its next step is under way; the others go on."""
    stop = right[0][4]
    wanted = [row[: row.index(stop) + 1] if stop in row else row for row in right]
    found = model.generate(TEXTS, max_new_tokens=NEW, stop_token_ids=[stop])
    assert [list(one.token_ids) for one in found] == wanted
    assert found[0].finish_reason == "stop"
    assert not held(model)


def test_who_stops_reading_holds_nothing(model: Any, right: list[list[int]]) -> None:
    parts = model.generate_iter([TEXTS[2]], max_new_tokens=NEW)
    next(parts)
    parts.close()
    assert not held(model)
    assert [list(one.token_ids) for one in model.generate(TEXTS, max_new_tokens=NEW)] == right


def test_who_joins_is_run_beside_those_under_way(model: Any, right: list[list[int]]) -> None:
    parts = model.generate_iter([TEXTS[0]], max_new_tokens=NEW)
    made = list(next(parts).token_ids)
    assert list(model.generate([TEXTS[1]], max_new_tokens=NEW)[0].token_ids) == right[1]
    made += [token for part in parts for token in part.token_ids]
    assert made == right[0]


def test_drawn_texts_are_read_first(model: Any, events: list[str]) -> None:
    """What is asked of them hangs on their tokens."""
    options = {"max_new_tokens": NEW, "temperature": 1.0, "seed": 3, "repetition_penalty": 1.3}
    wanted = model.generate(TEXTS, **options)
    assert "read" in events
    assert model.generate(TEXTS, **options) == wanted


def test_a_step_that_fails_loses_no_token(model: Any, right: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    loop = model.engine.decoding()
    run, calls = type(loop.lane.executable).__call__, [0]

    def failing(self: Any, inputs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(self, inputs)

    monkeypatch.setattr(type(loop.lane.executable), "__call__", failing)
    with pytest.raises(torch.OutOfMemoryError):
        model.generate(TEXTS, max_new_tokens=NEW)
    assert not held(model)
    assert [list(one.token_ids) for one in model.generate(TEXTS, max_new_tokens=NEW)] == right
