"""Pooled answers of causal models whose texts are longer than a step: as the eager model answers the whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.ir import Layout
from tests.conformance import oracle
from tests.coverage.configs import tiny_model
from tests.generating import prompts

BUDGET = 6
LENGTHS = (5, 17, 1, 6, 23)
POOLINGS = ("last", "mean", "cls", "max", "weightedmean", "mean_sqrt_len_tokens")
REST = pytest.mark.slow(reason="each pooling over one model's pieces, and each kind of model under one pooling")
# Every pooling of a plain decoder; windows, and states of a recurrence, under one that keeps a row and one that adds.
POOLED = [
    *(("llama", pooling) for pooling in POOLINGS),
    ("gemma3", "last"),
    ("qwen3-next", "mean"),
    *(
        pytest.param(name, pooling, marks=REST)
        for name, one in (("gemma3", "last"), ("qwen3-next", "mean"))
        for pooling in POOLINGS
        if pooling != one
    ),
]


def texts(vocabulary: int) -> list[list[int]]:
    """Texts of those lengths, and one that begins as the longest does."""
    made = prompts(vocabulary, *LENGTHS)
    return [*made, made[-1][:19] + prompts(vocabulary, 2, seed=5)[0]]


def asked(model: Any, ids: list[list[int]]) -> list[np.ndarray]:
    return [np.asarray(row) for row in model(ids)]


def pooled(pooling: str) -> Any:
    """A whole text's rows by sentence-transformers' formulas."""

    def read(output: Any) -> torch.Tensor:
        rows = output.last_hidden_state
        rank = torch.arange(1, rows.shape[1] + 1).to(rows.dtype)[:, None]
        made = {
            "last": rows[:, -1], "cls": rows[:, 0], "max": rows.amax(1), "mean": rows.mean(1),
            "weightedmean": (rows * rank).sum(1) / rank.sum(), "mean_sqrt_len_tokens": rows.sum(1) / len(rank) ** 0.5,
        }  # fmt: skip
        return made[pooling]

    return read


@pytest.mark.parametrize(("name", "pooling"), POOLED)
def test_embed(tiny: Any, name: str, pooling: str) -> None:
    eager = tiny(name, "AutoModel")
    model = headrace.compile(eager, target="reference", pooling=pooling, token_budget=BUDGET)
    given = texts(96)
    found = asked(model, given)
    oracle.require_close(found, eager, given, pooled(pooling))
    (lane,) = model.engine.lanes.values()
    assert lane.program.form.layout is Layout.CACHED
    assert max(LENGTHS) > BUDGET
    # Again, beginning where the first left off.
    oracle.require_close(asked(model, given[::-1]), eager, given[::-1], pooled(pooling))
    assert lane.state.store is not None
    assert not lane.state.store.used()


@pytest.mark.parametrize("name", ["llama", "mamba2", "rwkv"])
def test_prefixes_are_known_again(tiny: Any, name: str) -> None:
    """What a pooled text left serves the next that begins so, its pooled rows too."""
    model = headrace.compile(tiny(name, "AutoModel"), target="reference", pooling="mean", token_budget=16)
    (long,) = prompts(96, 50)
    whole = headrace.compile(tiny(name, "AutoModel"), target="reference", pooling="mean")
    wanted = asked(whole, [long, [*long[:40], 7, 8]])
    np.testing.assert_allclose(asked(model, [long]), wanted[:1], atol=1e-5)
    np.testing.assert_allclose(asked(model, [[*long[:40], 7, 8]]), wanted[1:], atol=1e-5)
    (loop,) = model.engine._loops.values()
    assert loop.tokens_known == 32


@pytest.mark.parametrize(("task", "labels"), [("classify", 3), ("score", 1)])
def test_heads(tiny: Any, task: str, labels: int) -> None:
    eager = tiny("qwen3", "AutoModelForSequenceClassification", num_labels=labels)
    model = headrace.compile(eager, target="reference", task=task, token_budget=BUDGET)
    given = texts(96)
    oracle.require_close(asked(model, given), eager, given, oracle.logits)


def test_a_whole_text_in_one_step_stays_bounded(tiny: Any) -> None:
    """The gate: token-level tasks need the step that single_pass keeps, so a longer text is an error there."""
    model = headrace.compile(tiny("qwen3", "AutoModel"), target="reference", pooling="last", token_budget=BUDGET,
                             prefill="single_pass")  # fmt: skip
    with pytest.raises(headrace.InputTooLongError, match="token_budget=6"):
        model(texts(96))


def test_what_no_cache_keeps_is_refused() -> None:
    """Doge adds a bias of the shape of its scores, which pieces do not have."""
    model = tiny_model("doge", "AutoModel")
    with pytest.raises(headrace.TargetError, match=r'prefill="single_pass", or leave token_budget out'):
        headrace.compile(model, target="reference", pooling="mean", token_budget=BUDGET)
    headrace.compile(model, target="reference", pooling="mean", token_budget=BUDGET, prefill="single_pass")


def test_explain_names_the_step_that_the_gate_protects(tiny: Any) -> None:
    model = headrace.compile(tiny("qwen3", "AutoModel"), target="reference", pooling="last", token_budget=BUDGET)
    assert "a text of more tokens than token_budget comes in pieces" in model.explain()
