"""What newcomers did that once crashed, hung or answered wrongly: each is right now, or refused in words."""

from __future__ import annotations

import copy
import pickle
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
    assert model.program.facts.limits.length is None
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
    around = Around(build("bert"), change)
    lowered = headrace.lower(around, target="reference")
    assert list(lowered.tasks) == ["raw"]
    with pytest.raises(headrace.TaskNotEnabledError, match="classify"):
        lowered.compile(task="classify")


def test_a_bare_tensor_of_an_inner_heads_logits_is_that_head() -> None:
    inner = build("bert", "AutoModelForSequenceClassification", num_labels=3)
    model = headrace.compile(Around(inner, lambda output: output.logits), target="reference")
    assert model.task == "classify"


def test_rows_without_a_width_are_raw() -> None:
    """A number a token, which is no vector and no logits."""

    def flat(output: Any) -> Any:
        return output.last_hidden_state.sum(-1)

    around = Around(build("bert"), flat)
    (found,) = headrace.compile(around, target="reference")([[5, 6, 7]])
    (values,) = found.values()
    with torch.no_grad():
        wanted = around(torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.long))[0]
    np.testing.assert_allclose(values, wanted, atol=1e-5)


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
    assert [spec.type for spec in program.nodes.attention] == [AttentionType.ENCODER_ONLY]
    assert program.nodes.attention[0].recovered


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", True])
def test_batch_size(embedder: Any, size: Any) -> None:
    with pytest.raises(headrace.InputError, match="batch_size"):
        embedder.embed(["w5", "w6"], batch_size=size)


@pytest.mark.parametrize(
    "options", [{"max_length": 2.5}, {"max_length": "8"}, {"max_length": True}, {"token_budget": "x"}, {"pooling": ()},
    {"prefill": []}, {"dtype": []}, {"trust_remote_code": "False"}, {"force": "no"}, {"revision": 5},
    {"progress": "no"}],
)  # fmt: skip
def test_options_of_another_type(options: dict[str, Any]) -> None:
    with pytest.raises(headrace.InputError, match=next(iter(options))):
        headrace.compile(build("bert"), target="reference", **options)


def test_token_types_past_the_table(embedder: Any) -> None:
    with pytest.raises(headrace.InputError, match=r"token_type_ids\[0\] holds 2; 0 to 1 are accepted"):
        embedder([[5, 6]], token_type_ids=[[0, 2]])


def test_score_takes_pairs() -> None:
    eager = build("bert", "AutoModelForSequenceClassification", num_labels=1)
    model = headrace.compile(eager, target="reference", tokenizer=bert_like())
    assert len(model.score([("w5", "w6")])) == 1
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


# Odd types


@pytest.mark.parametrize("odd", [None, 3, 1.5, True, object(), b"w5", int, np.array(5), "w5", {"w5": 1}, {5}])
def test_calls_on_what_is_no_list_of_ids(embedder: Any, odd: Any) -> None:
    with pytest.raises(headrace.InputError, match=r"accepted|order"):
        embedder(odd)
    with pytest.raises(headrace.InputError, match=r"accepted|order"):
        embedder([[5]], token_type_ids=[[0, 0]] if odd is None else odd)


@pytest.mark.parametrize("odd", [None, 3, object(), b"w5", np.array(5), [None], ["w5", 6], [["w5"]], {"w5": 1}, {"w5"}])
def test_what_is_no_text(embedder: Any, odd: Any) -> None:
    for ask in (embedder.embed, embedder.token_embed, lambda texts: list(embedder.embed_iter(texts))):
        with pytest.raises(headrace.InputError, match=r"a str is accepted|Pass a list"):
            ask(odd)


def test_embed_iter_takes_what_embed_takes(embedder: Any) -> None:
    """A text was taken for its characters."""
    for texts in ("w5 w6", ["w5", "w6"], np.array(["w5"]), np.str_("w5"), ("w5",), ("w5", "w6")):
        np.testing.assert_array_equal(list(embedder.embed_iter(texts)), embedder.embed(texts))


def test_a_bad_text_among_many_is_named(embedder: Any) -> None:
    many = ["w5"] * 2000
    for bad in (None, "\ud800", 7):
        with pytest.raises(headrace.InputError, match="Text 1500 "):
            embedder.embed([*many[:1500], bad, *many])


@pytest.mark.parametrize(
    "options",
    [
        {"truncate": "False"}, {"truncate": 1}, {"normalize": "no"}, {"normalize": np.array([1, 2])},
        {"dimensions": True}, {"dimensions": "4"}, {"dimensions": 1.0}, {"prompt": []}, {"prompt": 3},
        {"prompt": "\ud800"}, {"progress": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_options_of_a_request_of_another_type(embedder: Any, options: dict[str, Any]) -> None:
    with pytest.raises(headrace.InputError, match=rf"(?i){next(iter(options))}.* (accepted|from 1 to|surrogate)"):
        embedder.embed("w5", **options)


@pytest.mark.parametrize("task", [["embed"], {}, 5, b"embed"], ids=repr)
def test_what_is_no_task(embedder: Any, task: Any) -> None:
    with pytest.raises(headrace.TaskNotEnabledError, match="Choose one of: embed"):
        embedder([[5]], task=task)


@pytest.mark.parametrize("first", ["a", -1, True, 1.0], ids=repr)
def test_what_is_no_number_of_a_text(embedder: Any, first: Any) -> None:
    with pytest.raises(headrace.InputError, match="first is"):
        embedder.counting_from(first)


def test_score_names_the_request_that_is_no_pair() -> None:
    odd: Any
    eager = build("bert", "AutoModelForSequenceClassification", num_labels=1)
    model = headrace.compile(eager, target="reference", tokenizer=bert_like())
    for odd in (None, torch.zeros(2, 2), np.zeros((2, 2)), "w5", []):
        with pytest.raises(headrace.InputError, match=r"(Request 1|Text 1) is"):
            model.score([("w5", "w6"), odd])
    assert len(model.rank("w5", "w6 w7")) == 1
    assert len(model.rank("w5", ("w6", "w7"))) == 2


def test_how_many_to_fill_in() -> None:
    model = headrace.compile(build("bert", "AutoModelForMaskedLM"), target="reference", tokenizer=bert_like())
    odd: Any
    for odd in (0, -1, "x", 2.5, None, True):
        with pytest.raises(headrace.InputError, match=f"top is {odd!r}"):
            model.fill_mask("w5 [MASK]", odd)
    with pytest.raises(headrace.InputError, match="Text 1 holds no mask token"):
        model.fill_mask(["w5 [MASK]", "w5"])


@pytest.mark.parametrize("pair", [(None, None), ("a", "b"), ([["a"]], [["b"]]), (object(), 1), ([[1, 2], [3]], [1, 2])])
def test_similarity_of_what_is_no_vector(embedder: Any, pair: tuple[Any, Any]) -> None:
    with pytest.raises(headrace.InputError, match="cannot be compared"):
        embedder.similarity(*pair)


@pytest.mark.parametrize(
    "source", [None, 3, b"x", [], {}, object, np.array([1]), "", " ", "x" * 5000, "nul\0"], ids=repr
)
def test_what_is_no_model(source: Any) -> None:
    with pytest.raises(headrace.LoadError, match=r"an nn\.Module is accepted|no folder|Give a folder"):
        headrace.compile(source, target="reference")


@pytest.mark.parametrize(
    "folder", [None, 3, b"x", [], nn.Identity(), "", "x" * 5000, "nul\0", "half\udcff", "/no/such"], ids=repr
)
def test_what_is_no_saved_model(embedder: Any, folder: Any) -> None:
    with pytest.raises(headrace.ArtifactError, match=r"accepted|no folder|cannot be read"):
        headrace.load(folder)


@pytest.mark.parametrize("folder", [None, 3, b"x", "", "nul\0", "half\udcff", "/proc/x", "/proc/x/y"], ids=repr)
def test_where_nothing_can_be_saved(embedder: Any, folder: Any) -> None:
    for write in (embedder.save, embedder.export_onnx):
        with pytest.raises(headrace.ArtifactError, match=r"accepted|nothing was written"):
            write(folder)


def test_an_export_that_could_not_be_loaded(embedder: Any, tmp_path: Path) -> None:
    lowered = headrace.lower(build("bert"), target="reference")
    odd: Any
    options: dict[str, Any]
    for odd in (0, "8", 65, True):
        with pytest.raises(headrace.InputError, match=f"max_length is {odd!r}"):
            lowered.export_onnx(tmp_path / "out", max_length=odd)
    for options in ({"profile": []}, {"dtype": []}, {"dtype": "float64"}):
        with pytest.raises(headrace.InputError, match=rf"{next(iter(options))} is"):
            embedder.export_onnx(tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", [None, 3, ["cpu"], "reference:", "onnx:", "rocm:gfx000", "auto:cpu"])
def test_what_is_no_target(target: Any) -> None:
    with pytest.raises(headrace.TargetError, match="Choose from"):
        headrace.lower(build("bert"), target=target)


def test_a_tokenizer_that_is_not_there() -> None:
    with pytest.raises(headrace.LoadError, match="There is no folder /nowhere for the tokenizer"):
        headrace.compile(build("bert"), target="reference", tokenizer="/nowhere")


def test_a_compiled_model_is_not_pickled(embedder: Any) -> None:
    for ask in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(headrace.ArtifactError, match=r"headrace\.load\(FOLDER\)"):
            ask(embedder)


# Modules


def test_weights_without_values() -> None:
    with pytest.raises(headrace.LoadError, match="is on the meta device"):
        headrace.compile(build("bert").to("meta"), target="reference")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_torch_jit() -> None:
    with pytest.raises(headrace.TraceError, match=r"torch\.jit"):
        headrace.compile(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), target="reference")


def test_a_module_of_torch_compile_is_the_one_inside() -> None:
    program = headrace.trace(torch.compile(build("bert"))).program
    assert program.as_text() == headrace.trace(build("bert")).program.as_text()


def test_a_module_that_returns_a_dict() -> None:
    with pytest.raises(headrace.TraceError, match="returns a dict"):
        headrace.trace(Rows())


class Rows(nn.Module):
    """Rows of no transformers model, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(96, 32)

    def forward(self, input_ids: Tensor) -> Any:
        return {"rows": self.table(input_ids)}


def test_weights_that_are_not_finite() -> None:
    eager = build("bert")
    eager.embeddings.word_embeddings.weight.data[7:] = float("nan")
    with pytest.raises(headrace.NonFiniteError, match="look for broken weights"):
        headrace.compile(eager, target="reference", pooling="mean")


# Generating


def test_generate_is_refused_by_name(embedder: Any) -> None:
    for ask in (lambda: embedder.generate("w5", max_new_tokens=3), lambda: embedder.sparse_embed("w5")):
        with pytest.raises(headrace.TaskNotEnabledError, match=r"Choose one of: embed, token_embed"):
            ask()


def test_generate_on_a_target_that_keeps_no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = headrace.lower(build("qwen3", "AutoModelForCausalLM"), target="reference", pooling="last")
    monkeypatch.delattr("headrace.backends.inductor.tensors.OnTensors.resized")
    model = lowered.compile(task="embed")
    with pytest.raises(headrace.TargetError, match=r"lacks decoding on this target\. Choose one of: embed\."):
        model.generate(["w5"], max_new_tokens=3)
    with pytest.raises(headrace.TargetError, match="lacks decoding on this target"):
        lowered.compile(task="generate")


def test_stages_asked_about_a_task_that_is_none() -> None:
    lowered = headrace.lower(build("bert"), target="reference")
    task: Any
    for task in ("paint", 3, [], ""):
        for ask in (lowered.as_text, lowered.plan):
            with pytest.raises(headrace.TaskNotEnabledError, match="Choose one of"):
                ask(task)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, None, None), "name is None"),
        (("x", int, None), "state is"),
        (("x", headrace.ModelState, 3), "when is 3"),
    ],
)
def test_what_is_no_state(given: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(headrace.InputError, match=f"{said}.*accepted"):
        headrace.register_model_state(*given)
