"""What newcomers did that once crashed, hung or answered wrongly: each is right now, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace
from headrace.ir import AttentionType
from tests.tiny import build
from tests.words import bert_like


@pytest.fixture(scope="module")
def embedder() -> Any:
    return headrace.compile(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")


class Around(nn.Module):
    """A model in a module of the user's own."""

    def __init__(self, inner: nn.Module, change: Any) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.change(self.inner(input_ids=input_ids, attention_mask=attention_mask))


def test_a_relative_bias_is_no_position_table() -> None:
    """T5 looks distances up in a table; that bounds no length."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=99, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=37)
    eager = T5EncoderModel(config).eval()
    model = headrace.compile(eager, target="reference", pooling="mean")
    assert model.program.limits.length is None
    ids = torch.randint(3, 99, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = eager(input_ids=ids).last_hidden_state.mean(1)[0].numpy()
    np.testing.assert_allclose(model(ids.tolist(), task="embed")[0], wanted, atol=1e-5)


def test_rows_of_a_batch_that_mix_are_refused() -> None:
    def less_the_mean(output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state - output.last_hidden_state.mean(0, keepdim=True) / 2
        return output

    with pytest.raises(headrace.TraceError, match="mixes the rows of a batch"):
        headrace.compile(Around(build("bert"), less_the_mean), target="reference")


def test_labels_that_share_a_name_keep_their_scores() -> None:
    eager = build("bert", "AutoModelForSequenceClassification", id2label={0: "A", 1: "A", 2: "B"})
    model = headrace.compile(eager, target="reference", tokenizer=bert_like())
    (found,) = model.classify("w5")
    assert list(found.scores) == ["A (0)", "A (1)", "B"]
    assert sum(found.scores.values()) == pytest.approx(1, abs=1e-6)
    assert found.score == found.scores[found.label]


@pytest.mark.parametrize("change", [lambda o: o.last_hidden_state.mean(1), lambda o: o.last_hidden_state * 2])
def test_a_bare_tensor_is_not_taken_for_logits(change: Any) -> None:
    model = headrace.compile(Around(build("bert"), change), target="reference")
    assert list(model.tasks) == []
    with pytest.raises(headrace.TaskNotEnabledError, match="logits or vectors"):
        model([[5, 6]])


def test_a_bare_tensor_of_an_inner_heads_logits_is_that_head() -> None:
    inner = build("bert", "AutoModelForSequenceClassification", num_labels=3)
    model = headrace.compile(Around(inner, lambda output: output.logits), target="reference")
    assert model.task == "classify"


def test_rows_without_a_width_are_refused() -> None:
    def flat(output: Any) -> Any:
        return output.last_hidden_state.sum(-1)

    with pytest.raises(headrace.TraceError, match="follows the length of the text"):
        headrace.compile(Around(build("bert"), flat), target="reference")


def test_torchs_own_attention_is_not_overlooked() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(96, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, input_ids: Tensor) -> Tensor:
            rows: Tensor = self.layer(self.table(input_ids))
            return rows

    program = headrace.lower(Own(), target="reference").program
    assert [spec.type for spec in program.attention] == [AttentionType.ENCODER_ONLY]
    assert program.attention[0].recovered


@pytest.mark.parametrize("size", [0, -1, 2.5, "4"])
def test_batch_size(embedder: Any, size: Any) -> None:
    with pytest.raises(headrace.InputError, match="batch_size"):
        embedder.embed(["w5", "w6"], batch_size=size)


@pytest.mark.parametrize("options", [{"max_length": 2.5}, {"max_length": "8"}, {"token_budget": "x"}, {"pooling": ()}])
def test_options_of_another_type(options: dict[str, Any]) -> None:
    with pytest.raises(headrace.InputError, match=next(iter(options))):
        headrace.compile(build("bert"), target="reference", **options)


def test_token_types_past_the_table(embedder: Any) -> None:
    with pytest.raises(headrace.InputError, match="past 1"):
        embedder([[5, 6]], token_type_ids=[[0, 2]])


def test_score_takes_pairs() -> None:
    eager = build("bert", "AutoModelForSequenceClassification", num_labels=1)
    model = headrace.compile(eager, target="reference", tokenizer=bert_like())
    assert len(model.score(("w5", "w6"))) == 1
    for singles in ("w5", ["w5", "w6"]):
        with pytest.raises(headrace.InputError, match="pairs"):
            model.score(singles)


def test_saving_where_no_folder_can_be(embedder: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "file", tmp_path / "link", tmp_path / "file" / "below"):
        with pytest.raises(headrace.ArtifactError, match=r"[Nn]othing was written"):
            embedder.save(place)


def test_a_saved_model_is_not_a_source(embedder: Any, tmp_path: Path) -> None:
    with pytest.raises(headrace.LoadError, match=r"headrace\.load"):
        headrace.compile(embedder.save(tmp_path / "saved"), target="reference")
