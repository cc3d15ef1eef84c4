"""Small inputs on which public systems went wrong, end to end; each test names its case."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import headrace
from tests.compilations import compilations
from tests.conformance import oracle
from tests.tiny import VOCABULARY, build
from tests.words import bert_like, gpt_like

SEQUENCE, TOKEN = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        yield


def reference(model: Any, **options: Any) -> Any:
    return headrace.compile(model, target="reference", **options)


def ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def alone(model: Any, requests: list[list[int]], task: str) -> list[Any]:
    return [model([request], task=task)[0] for request in requests]


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        pytest.param("qwen3", (1, 6), id="P1"),
        pytest.param("gemma3-bidirectional", (2, 12), id="P4"),
        pytest.param("llama-bidirectional", (1, 9), id="B5"),
        pytest.param("modernbert", (3, 60), id="P15-padded"),
    ],
)
def test_a_row_of_a_batch_equals_the_text_alone(name: str, lengths: tuple[int, ...], tiny: Any) -> None:
    model, requests = reference(tiny(name)), ids(*lengths)
    for one, other in zip(model(requests, task="embed"), alone(model, requests, "embed"), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_p5_half_precision_decoder_is_finite_whatever_is_padded() -> None:
    """P5: float16; a short text beside a long one, so that most of its row is padding."""
    model = reference(build("qwen3").half())
    requests = ids(2, 40)
    for one, other in zip(model(requests, task="embed"), alone(model, requests, "embed"), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=2e-2)


@pytest.mark.slow(reason="test_x1_x2_one_graph_for_every_shape, and test_call_n_equals_call_one of the same model")
def test_p7_the_same_tokens_thirty_times_through_one_graph() -> None:
    """P7: 20 positions of which 18 are usable, 6 and 17 tokens."""
    with compilations() as made:
        model = headrace.compile(build("xlm-roberta", max_position_embeddings=20), target="cpu")
    assert made.count == 1
    lane = model.engine.lane("embed")
    with compilations() as made:
        for request in ids(6, 17):
            answers = [model([request], task="embed")[0] for _ in range(30)]
            assert all(np.array_equal(answers[0], answer) for answer in answers)
    assert (lane.executable.calls, made.count) == (60, 0)


def test_p9_p10_usable_length() -> None:
    """P9, P10: RoBERTa's positions begin past its padding id; truncated when asked, else refused with both numbers."""
    model = reference(
        build("roberta", pad_token_id=3, max_position_embeddings=14), tokenizer=bert_like(model_max_length=512)
    )
    assert model.program.facts.limits.length == 10
    text = " ".join(f"w{5 + i}" for i in range(9))  # 11 tokens with [CLS] and [SEP]
    with pytest.raises(headrace.InputTooLongError, match=r"11 tokens.*10"):
        model.embed(text)
    assert model.embed(text, truncate=True).shape == (1, 32)
    with pytest.raises(headrace.InputTooLongError, match="11 tokens"):
        model(ids(11))


def test_p11_p12_pairs_have_token_types() -> None:
    """P11, P12: a pair's types reach the model, also those of the tokens that truncation leaves."""
    eager = build("bert", SEQUENCE, num_labels=1)
    tokenizer = bert_like(model_max_length=64)
    tokenizer.truncation_side = "left"
    model = reference(eager, tokenizer=tokenizer)
    query, document = "w5 w6 w7 w8", " ".join(f"w{20 + i}" for i in range(20))
    for longest in (64, 11):
        inputs = tokenizer(query, document, truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            wanted = float(eager(**inputs).logits[0, 0].sigmoid())
            untyped = float(eager(**{**inputs, "token_type_ids": inputs["input_ids"] * 0}).logits[0, 0].sigmoid())
        limited = reference(eager, tokenizer=tokenizer, max_length=longest)
        (score,) = limited.score([(query, document)], truncate=True)
        assert score == pytest.approx(wanted, abs=1e-6)
        assert abs(score - untyped) > 1e-4
        assert 1 in inputs["token_type_ids"]
    assert model.task == "score"


def test_p13_a_tokenizer_without_types_feeds_zeros() -> None:
    """P13: the model takes token types, its tokenizer gives none."""
    tokenizer = bert_like(model_input_names=["input_ids", "attention_mask"])
    eager = build("bert")
    model = reference(eager, tokenizer=tokenizer)
    inputs = tokenizer("w5 w6", return_tensors="pt")
    assert "token_type_ids" not in inputs
    with torch.no_grad():
        wanted = eager(**inputs).last_hidden_state.mean(1)[0].numpy()
    np.testing.assert_allclose(model.embed("w5 w6")[0], wanted, atol=1e-5)


def test_p14_a_pair_without_a_separator() -> None:
    """P14: no separator token, so the two texts follow one another, and nothing called None stands between."""
    tokenizer = gpt_like()
    tokenizer.sep_token = None
    model = reference(build("gpt2", SEQUENCE), tokenizer=tokenizer)
    (found,) = model.classify([("w5 w6", "w7")])
    (plain,) = model.classify("w5 w6 w7")
    assert found.scores == pytest.approx(plain.scores, abs=1e-6)


def test_h6_a_token_head_is_never_served_as_another() -> None:
    """H6: BertForTokenClassification offers token_classify alone."""
    model = reference(build("bert", TOKEN), tokenizer=bert_like())
    assert list(model.tasks) == ["token_classify"]
    for call in (model.embed, model.classify):
        with pytest.raises(headrace.TaskNotEnabledError, match="offers: token_classify"):
            call("w5")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"num_labels": 1}, lambda z: 1 / (1 + np.exp(-z)), id="H1"),
        pytest.param(
            {"num_labels": 3, "problem_type": "multi_label_classification"}, lambda z: 1 / (1 + np.exp(-z)), id="H2"
        ),
        pytest.param({"num_labels": 1, "problem_type": "regression"}, lambda z: z, id="H3"),
        pytest.param({"num_labels": 3}, lambda z: np.exp(z) / np.exp(z).sum(), id="softmax"),
        pytest.param(
            {"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            lambda z: 1 / (1 + np.exp(-z)),
            id="H7",
        ),
    ],
)
def test_scores_follow_the_config(config: dict[str, Any], expected: Any) -> None:
    """H1, H2, H3, H7: what turns logits into scores."""
    model = reference(build("bert", SEQUENCE, **config), tokenizer=bert_like())
    (logits,) = model([model.tokenizer("w5 w9")["input_ids"]], task="classify")
    (found,) = model.classify("w5 w9")
    np.testing.assert_allclose(list(found.scores.values()), expected(logits.astype(np.float64)), atol=1e-6)


def test_h5_labels_are_ordered_as_numbers() -> None:
    """H5: eleven labels whose keys are strings."""
    names = {str(i): f"name{i}" for i in range(11)}
    model = reference(build("bert", SEQUENCE, id2label=names, label2id={v: int(k) for k, v in names.items()}))
    assert model.program.facts.labels.names == tuple(f"name{i}" for i in range(11))


def test_l1_a_budget_smaller_than_a_text() -> None:
    """L1: a token budget of 16, a text of 40 tokens."""
    model = reference(build("bert"), tokenizer=bert_like(), token_budget=16)
    text = " ".join(["w9"] * 38)
    with pytest.raises(headrace.InputTooLongError, match=r"40 tokens.*16"):
        model.embed([text, "w5"])
    assert model.embed([text, "w5"], truncate=True).shape == (2, 32)


def test_l2_a_text_and_a_list_of_one() -> None:
    """L2: the same long text as a string and as a list of one."""
    model = reference(build("bert"), tokenizer=bert_like())
    text = " ".join(f"w{5 + i % 90}" for i in range(600))
    np.testing.assert_array_equal(model.embed(text, truncate=True), model.embed([text], truncate=True))


def test_l3_empty_texts() -> None:
    """L3: special tokens make an empty text one that can be embedded; without them it is refused by its number."""
    embedded = reference(build("bert"), tokenizer=bert_like()).embed(["", "w5"])
    assert np.isfinite(embedded).all()
    with pytest.raises(headrace.InputError, match="Text 1 has no tokens"):
        reference(build("gpt2"), tokenizer=gpt_like()).embed(["w5", ""])


def test_l5_an_overflow_is_an_error() -> None:
    """L5: one token's float16 embedding is so large that an activation passes 65504; the others are served."""
    eager = build("gpt2").half()
    with torch.no_grad():
        eager.wte.weight[9] = torch.inf
    model = reference(eager, tokenizer=gpt_like())
    assert np.isfinite(model.embed("w5 w6")).all()
    with pytest.raises(headrace.NonFiniteError, match=r"float16.*bfloat16"):
        model.embed(["w5", "w9 w6"])


def test_l5_a_model_that_always_overflows_is_refused_at_once() -> None:
    """L5: float16 weights scaled until every text overflows."""
    eager = build("bert").half()
    with torch.no_grad():
        for layer in eager.encoder.layer:
            layer.intermediate.dense.weight.mul_(3e3)
            layer.output.dense.weight.mul_(3e3)
    with pytest.raises(headrace.NonFiniteError, match=r"float16.*bfloat16"):
        reference(eager)


class OnCpu(NamedTuple):
    """An eager model of its own, what it was compiled to, and how many compilations that took."""

    eager: Any
    model: Any
    graphs: int


@pytest.fixture(scope="module")
def on_cpu() -> OnCpu:
    eager = build("bert")
    with warnings.catch_warnings(), compilations() as made:
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        model = headrace.compile(eager, target="cpu")
    return OnCpu(eager, model, made.count)


def test_x1_x2_one_graph_for_every_shape(on_cpu: OnCpu, tiny: Any) -> None:
    """X1, X2: the smallest shapes are right, and 50 random lengths need no second graph."""
    model = on_cpu.model
    assert on_cpu.graphs == 1
    executable = model.engine.lane("embed").executable
    lengths = torch.randint(1, 64, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    requests = ids(1, 7, 9, *lengths)
    wanted = oracle.answers(tiny("bert"), requests, oracle.pooled("mean"), torch.float32)
    with compilations() as made:
        for shape in ([0], [1], [0, 0], [2, 2], *([i] for i in range(3, len(requests)))):
            for i, answer in zip(shape, model([requests[i] for i in shape], task="embed"), strict=True):
                np.testing.assert_allclose(answer, wanted[i], atol=1e-5)
    assert made.count == 0
    assert model.engine.lane("embed").executable is executable


def test_x7_compiled_code_runs_not_the_eager_model(on_cpu: OnCpu) -> None:
    """X7: the eager model is broken once the compiled one is made, and nothing is noticed."""
    eager, model = on_cpu.eager, on_cpu.model
    calls = model.engine.lane("embed").executable.calls
    before = model(ids(5), task="embed")[0]
    for module in eager.modules():
        module.forward = None
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.zero_()
    with pytest.raises(TypeError):
        eager(torch.tensor(ids(5)))
    np.testing.assert_array_equal(model(ids(5), task="embed")[0], before)
    assert np.abs(before).max() > 0.1, "weights of zero would have shown"
    assert model.engine.lane("embed").executable.calls == calls + 2
