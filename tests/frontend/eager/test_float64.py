"""A model run in float64 without a copy of its weights measures what the copy measures."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from headrace.frontend.eager import float64
from headrace.frontend.eager.float64 import Widened, in_float64
from headrace.frontend.load import checkpoint
from headrace.frontend.probe import behaviour
from headrace.frontend.trace import trace
from tests.tiny import build

MODELS = [("bert", "AutoModel"), ("mistral", "AutoModel"), ("gemma3", "AutoModel"), ("t5", "T5EncoderModel")]


def test_everything_is_wide_and_the_weights_stay() -> None:
    model = build("llama", "AutoModel").half()
    with torch.no_grad(), Widened():
        rows = model(torch.tensor([[5, 6, 7]])).last_hidden_state
    assert rows.dtype is torch.float64
    assert {weight.dtype for weight in model.parameters()} == {torch.float16}
    with torch.no_grad():
        copied = model.double()(torch.tensor([[5, 6, 7]])).last_hidden_state
    # The copy still rounds where the model's code names float32.
    torch.testing.assert_close(rows, copied, rtol=1e-5, atol=1e-5)


def test_of_a_table_the_rows_that_are_looked_up_are_widened_and_all_of_it_for_anything_else() -> None:
    model, ids = build("bert", "AutoModelForMaskedLM"), torch.tensor([[5, 6, 7]])
    copied, cast = in_float64(model), copy.deepcopy(model).double()
    words, places = copied.bert.embeddings.word_embeddings.weight, copied.bert.embeddings.position_embeddings.weight
    assert words is copied.cls.predictions.decoder.weight
    with torch.no_grad():
        assert torch.equal(copied(ids).logits, cast(ids).logits)
    assert isinstance(words, torch.nn.Parameter)
    assert [table.dtype for table in (words, places)] == [torch.float64] * 2
    assert [bool(table.kept) for table in (words, places)] == [True, False]
    places.data[3] = 0.0
    with torch.no_grad():
        assert not copied.bert.embeddings.position_embeddings(torch.tensor([3])).any()
    assert model.bert.embeddings.position_embeddings.weight[3].any()
    again = copy.deepcopy(copied)
    assert isinstance(again.bert.embeddings.token_type_embeddings.weight, torch.nn.Parameter)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, copied(ids).logits)


@pytest.mark.parametrize(("name", "head"), MODELS)
def test_measures_as_the_copy_does(name: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes, and which rows each key reaches."""
    found: list[Any] = []
    for limit in (behaviour.COPIED_PARAMETERS, 0):
        monkeypatch.setattr(behaviour, "COPIED_PARAMETERS", limit)
        measured = trace(checkpoint.load(build(name, head), dtype=torch.float32)).behaviour
        attentions = (None,) * len(measured._seen.calls)
        reached = measured.reach(9, (0, 4, 8), attentions)
        assert None not in reached
        found.append((measured.stack_change(9), reached))
        assert measured._rows(measured._inputs(9), behaviour.TEXT).dtype is torch.float64
        assert measured._widens == (limit == 0)
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6, abs=1e-12)
    assert found[0][1] == found[1][1]


def test_what_is_kept_is_bounded_and_never_another_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64, "KEPT", 100 * 8)
    with torch.no_grad(), Widened() as mode:
        for value in range(20):
            weight = torch.nn.Parameter(torch.full((30,), float(value)))
            assert bool((weight + 0.0 == value).all())
            assert bool((weight + 1.0 == value + 1).all())
            assert mode._size <= 100 * 8
        large = torch.nn.Parameter(torch.ones(1000))
        assert bool((large + 1.0 == 2.0).all())
        assert len(mode._kept) == 1
