"""Contract D3 for requests that hypothesis draws: whatever goes together, each is answered as it is alone.

Lengths, duplicates, batch sizes, where a list is cut into calls, and the side of the padding, for every task.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ir import PER_TOKEN_OUTPUTS, Role
from tests.tiny import PAD, fed
from tests.words import bert_like

TOKENIZER = bert_like()
SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32}
# Task, architecture, head, and what else is compiled: each reads the text in another way.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "embed, the mean": ("embed", "bert", "AutoModel", {"pooling": "mean"}),
    "embed, the last of a causal model": ("embed", "llama", "AutoModel", {"pooling": "last"}),
    "token_embed, positions from 2": ("token_embed", "roberta", "AutoModel", {"pooling": "mean"}),
    "classify, with windows": ("classify", "modernbert", "AutoModelForSequenceClassification", {}),
    "score": ("score", "bert", "AutoModelForSequenceClassification", {"config": SMALL | {"num_labels": 1}}),
    "token_classify": ("token_classify", "bert", "AutoModelForTokenClassification", {}),
    "fill_mask": ("fill_mask", "bert", "AutoModelForMaskedLM", {}),
}
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 13, 21, 60)
REQUESTS = st.lists(st.tuples(st.sampled_from(LENGTHS), st.integers(0, 2)), min_size=1, max_size=7)
DRAWN = {
    "case": st.sampled_from(list(CASES)),
    "requests": REQUESTS,
    "again": st.lists(st.integers(0, 6), max_size=4),
    "batch_size": st.none() | st.integers(1, 5),
    "cut": st.integers(0, 11),
    "iterates": st.booleans(),
    "left": st.booleans(),
}


class Models:
    """The model of each case, and what it answers to a request alone: as it is answered, and the raw numbers."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.alone, self.raw = cache(self._alone), cache(self._raw)

    def model(self, case: str) -> Any:
        _, name, head, options = CASES[case]
        config = options.get("config", SMALL if name != "modernbert" else SMALL | {"num_hidden_layers": 2})
        rest = {key: value for key, value in options.items() if key != "config"}
        return self._compiled(name, head, "reference", config=config, tokenizer=TOKENIZER, **rest)

    def _alone(self, case: str, request: Any) -> Any:
        (answer,) = self.model(case).answer(CASES[case][0], [request])
        return answer

    def _raw(self, case: str, ids: tuple[int, ...]) -> Any:
        return self.model(case)([ids], task=CASES[case][0])[0]


@pytest.fixture(scope="session")
def models(compiled: Any) -> Models:
    return Models(compiled)


def text(length: int, seed: int) -> str:
    """Words that differ by their place, and by the seed."""
    return " ".join(f"w{5 + (7 * seed + 11 * place + length) % 91}" for place in range(length))


def request_of(task: str, length: int, seed: int) -> Any:
    if task == "score":
        return text(length // 2, seed), text(length - length // 2 - (length > 58), seed + 1)
    return f"{text(length, seed)} [MASK]" if task == "fill_mask" else text(length, seed)


def require_same(found: Any, wanted: Any) -> None:
    """Within the bounds of D1: probabilities and scores 1e-4, raw vectors 1e-5 of their size."""
    if isinstance(wanted, np.ndarray):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=1e-5 * max(1.0, float(np.abs(wanted).max(initial=0))), rtol=0)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            require_same(one, other)
    elif hasattr(wanted, "scores"):
        assert found.label == wanted.label
        assert found.scores == pytest.approx(wanted.scores, abs=1e-4)
    else:
        assert found.score == pytest.approx(wanted.score, abs=1e-4)
        assert {**found, "score": 0} == {**wanted, "score": 0}


def check(
    models: Models, case: str, requests: list[tuple[int, int]], again: list[int], batch_size: int | None, cut: int,
    iterates: bool, left: bool,
) -> None:  # fmt: skip
    task, model = CASES[case][0], models.model(case)
    texts = [request_of(task, *one) for one in requests]
    texts += [texts[place % len(texts)] for place in again]
    parts = [part for part in (texts[:cut], texts[cut:]) if part]
    answers: list[Any] = []
    for part in parts:
        if iterates:
            answers += getattr(model, f"{task}_iter")(iter(part), batch_size=batch_size)
        else:
            answers += list(model.answer(task, part, batch_size=batch_size))
    assert len(answers) == len(texts)
    for one, request in zip(answers, texts, strict=True):
        require_same(one, models.alone(case, request))
    padded(models, case, texts, left)


def padded(models: Models, case: str, texts: list[Any], left: bool) -> None:
    """The executable on one padded batch, of whichever side: its rows are those of each request alone."""
    task, model = CASES[case][0], models.model(case)
    lane = model.engine.lane(task)
    read = [tuple(TOKENIZER(*(one if isinstance(one, tuple) else (one,)))["input_ids"]) for one in texts]
    width = max(map(len, read))
    ids, mask = torch.full((len(read), width), PAD), torch.zeros(len(read), width, dtype=torch.long)
    for row, one in enumerate(read):
        place = slice(width - len(one), width) if left else slice(len(one))
        ids[row, place], mask[row, place] = torch.tensor(one), 1
    if not lane.program.signature.has(Role.PADDING):
        return
    output = np.asarray(lane.executable(fed(lane.program, ids, mask)))
    per_token = lane.program.signature.outputs[0].kind in PER_TOKEN_OUTPUTS
    for row, one in enumerate(read):
        found = output[row][mask[row].bool().numpy()] if per_token else output[row]
        require_same(found, models.raw(case, one))


@given(**DRAWN)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_batched_equals_single(models: Models, **drawn: Any) -> None:
    check(models, **drawn)


@pytest.mark.slow
@given(**DRAWN)
@settings(max_examples=2000, deadline=None, database=None)
def test_batched_equals_single_for_long(models: Models, **drawn: Any) -> None:
    check(models, **drawn)


def test_what_would_fail(models: Models) -> None:
    """A row that padding touched is seen, on either side."""
    case = "embed, the mean"
    lane, ids = models.model(case).engine.lane("embed"), torch.tensor([[0, 5, 6, 2], [0, 5, 2, PAD]])
    wanted = models.raw(case, (0, 5, 2))
    exact = np.asarray(lane.executable(fed(lane.program, ids, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]))))
    require_same(exact[1], wanted)
    touched = np.asarray(lane.executable(fed(lane.program, ids, torch.ones_like(ids))))
    with pytest.raises(AssertionError):
        require_same(touched[1], wanted)
