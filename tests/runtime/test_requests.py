"""What goes into a call and what comes out: token ids beside texts, limits, columns, duplicates, iterators, outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.runtime.methods import iterating
from headrace.runtime.places import once
from tests.words import bert_like

TOKENIZER = bert_like()
TEXTS = ["w5 w6", "w7", "w5 w6", "w8 w9 w10", "w7", "w7"]
HEADS = {
    "embed": "AutoModel",
    "token_embed": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "token_classify": "AutoModelForTokenClassification",
    "fill_mask": "AutoModelForMaskedLM",
}
# Tasks that the other tests do not ask for.
MORE = {
    "zero_shot_classify": "AutoModelForSequenceClassification",
    "answer_question": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "raw": "AutoModelForPreTraining",
}
ENTAILS = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture
def made(compiled: Any) -> Any:
    """`made(task)` is a tiny model of that task; `score` is a classifier of one label."""

    def make(task: str) -> Any:
        options = {"pooling": "mean"} if task == "embed" else {}
        config: dict[str, Any] | None = {"num_labels": 1} if task == "score" else None
        head = (HEADS | MORE).get(task, "AutoModelForSequenceClassification")
        config = {"id2label": ENTAILS} if task == "zero_shot_classify" else config
        return compiled("bert", head, "reference", config=config, tokenizer=TOKENIZER, **options)

    return make


def texts_of(task: str) -> list[Any]:
    if task == "multiple_choice":
        return [(text, ["w20", "w21 w22"]) for text in TEXTS]
    if task in ("score", "answer_question"):
        return [(text, "w20") for text in TEXTS]
    return [f"{text} [MASK]" for text in TEXTS] if task == "fill_mask" else TEXTS


def plain(answer: Any) -> Any:
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


@pytest.mark.parametrize("task", [*HEADS, "score"])
def test_duplicates_are_computed_once_and_answered_in_place(task: str, made: Any) -> None:
    model, texts = made(task), texts_of(task)
    seen: list[int] = []
    batcher = model.engine.lane(task).batcher
    with pytest.MonkeyPatch.context() as patch:
        rows = batcher.rows

        def counted(step: Any, *rest: Any) -> Any:
            seen.extend(step.requests)
            return rows(step, *rest)

        patch.setattr(batcher, "rows", counted)
        answers = model.answer(task, texts)
    assert sorted(seen) == [0, 1, 2]
    alone = [plain(model.answer(task, [text])[0]) for text in texts]
    assert len(answers) == len(texts)
    for one, other in zip(answers, alone, strict=True):
        if task in ("embed", "token_embed"):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert plain(answers[0]) == plain(answers[2])
    assert plain(answers[1]) == plain(answers[4]) == plain(answers[5])


def test_the_answers_to_duplicates_are_arrays_of_their_own(made: Any) -> None:
    first, second = made("token_embed").token_embed(["w5", "w5"])
    first[:] = 0
    assert second.any()


def test_messages_count_and_number_what_the_caller_gave(made: Any) -> None:
    model = made("embed")
    with pytest.raises(headrace.InputError, match="Text 3 is 5"):
        model.embed(["w5", "w5", "w6", 5])
    long = "w5 " * 99
    with pytest.raises(headrace.InputTooLongError, match=r"Text 2 has .*\(1 more of these"):
        model.embed(["w5", "w5", long, long, long + "w6"], truncate=False)


def test_what_is_alike_and_what_is_not() -> None:
    kept, places = once(["a", "a", ("a", "b"), ["a", "b"], [1, 2], [True, 2], np.array([1, 2])])
    assert kept[:3] == ["a", ("a", "b"), [1, 2]]
    assert places.same == ((0, 1), (2, 3), (4, 6), (5,))
    assert once(["a", "b"])[1].same is None


def test_token_ids_beside_texts(made: Any) -> None:
    """They are taken as they are: those that the tokenizer makes of a text answer as the text."""
    model = made("embed")
    ids = [TOKENIZER(text)["input_ids"] for text in TEXTS]
    wanted = model.embed(TEXTS)
    mixed = [one if number % 2 else text for number, (one, text) in enumerate(zip(ids, TEXTS, strict=True))]
    for given in (ids, mixed, [np.array(one) for one in ids], [torch.tensor(one) for one in ids]):
        np.testing.assert_allclose(model.embed(given), wanted, atol=1e-6)
    np.testing.assert_allclose(model.embed(ids[0]), wanted[:1], atol=1e-6)
    assert model.embed(np.array([ids[0], ids[2]])).shape == (2, 32)


def test_token_ids_with_types_are_a_pair(made: Any) -> None:
    model = made("score")
    given = dict(TOKENIZER("w5 w6", "w7"))
    del given["attention_mask"]
    (wanted,), (found,) = model.score([("w5 w6", "w7")]), model.classify([given])
    assert found.score == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(headrace.InputError, match="Request 1 has attention_mask; input_ids and token_type_ids"):
        model.classify(["w5", dict(TOKENIZER("w5"))])


@pytest.mark.parametrize(
    ("ask", "met"),
    [
        (lambda model: model.embed(["w5", [5, 1000]]), r"token_ids\[1\] holds 1000"),
        (lambda model: model.embed(["w5", [5, True]]), r"token_ids\[1\] is \[5, True\]"),
        (lambda model: model.embed(["w5", [5] * 99], truncate=True), r"token_ids\[1\] has 99 tokens"),
        (lambda model: model.embed(["w5", [5]], prompt="say: "), "Request 1 is token ids, which are taken as they are"),
    ],
)
def test_token_ids_that_are_refused(ask: Any, met: str, made: Any) -> None:
    with pytest.raises(headrace.InputError, match=met):
        ask(made("embed"))


def test_parts_of_a_text_are_not_parts_of_ids(made: Any) -> None:
    with pytest.raises(headrace.InputError, match=r"Text 0 is \[5, 6\]; in one call every text is a str"):
        made("token_classify").token_classify([[5, 6]])


def test_a_limit_of_one_call(made: Any) -> None:
    model, long = made("embed"), "w5 " * 20
    np.testing.assert_allclose(
        model.embed(long, max_length=8, truncate=True), model.embed("w5 " * 6, truncate=True), atol=1e-6
    )
    with pytest.raises(headrace.InputTooLongError, match=r"at most 8 are accepted \(max_length=8\)"):
        model.embed(long, max_length=8)
    assert model.embed(long).shape == (1, 32)
    with pytest.raises(headrace.InputError, match="max_length is 65, but the model reads at most 64"):
        model.embed(long, max_length=65)
    with pytest.raises(headrace.InputError, match="no option 'max_lenght'"):
        model.embed(long, max_lenght=8)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_which_text_of_a_pair_gives_is_the_tokenizers_rule(strategy: str, side: str, made: Any) -> None:
    """Each strategy keeps the tokens that transformers keeps, of short texts and of those that are clipped first."""
    from headrace.runtime.text.texts import Texts

    tokenizer = bert_like(truncation_side=side)
    reader = Texts(tokenizer, made("score").program)
    words = [f"w{5 + i % 90}" for i in range(700)]
    lengths = [(60, 20), (20, 60), (700, 20), (20, 700), (700, 700)]
    for first, second in lengths:
        pair = (" ".join(words[:first]), " ".join(reversed(words[:second])))
        other = second if strategy == "only_first" else first
        if strategy != "longest_first" and other + 3 > 64:
            with pytest.raises(headrace.InputTooLongError, match=f"none left of the text that {strategy} truncates"):
                reader.encode([pair], truncate=strategy, pairs=True)
            continue
        wanted = tokenizer(*pair, truncation=strategy, max_length=64)["input_ids"]
        assert reader.encode([pair], truncate=strategy, pairs=True)[0].ids.tolist() == wanted, (first, second)


def test_strategies_that_are_refused(made: Any) -> None:
    with pytest.raises(headrace.InputError, match="only_second', which is for pairs"):
        made("embed").embed("w5", truncate="only_second")
    with pytest.raises(
        headrace.InputError, match="truncate is 'first'; True, False, None and, of pairs, longest_first"
    ):
        made("score").score([("w5", "w6")], truncate="first")


def test_pairs_and_texts_in_the_containers_of_other_libraries(made: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    pairs = [("w5 w6", "w7"), ("w8", "w9 w10")]
    scores, embeds = made("score"), made("embed")
    wanted, vectors = scores.score(pairs), embeds.embed(TEXTS)
    for given in (np.array(pairs), np.array(pairs, object), arrow.array([list(pair) for pair in pairs])):
        assert scores.score(given) == pytest.approx(wanted)
    column = arrow.array(TEXTS)
    halves = arrow.chunked_array([TEXTS[:2], TEXTS[2:]])
    for given in (np.array(TEXTS), column, column.cast(arrow.large_string()), halves, column.dictionary_encode()):
        np.testing.assert_allclose(embeds.embed(given), vectors, atol=1e-6)
    ids = arrow.array([TOKENIZER(text)["input_ids"] for text in TEXTS])
    np.testing.assert_allclose(embeds.embed(ids), vectors, atol=1e-6)
    ranked = scores.rank("w5", arrow.array(["w6", "w7"]))
    assert {one.index for one in ranked} == {0, 1}
    with pytest.raises(headrace.InputError, match=r"a table of the columns \['text'\].*table\['text'\]"):
        embeds.embed(arrow.table({"text": column}))
    with pytest.raises(headrace.InputError, match="Text 1 is None"):
        embeds.embed(arrow.array(["w5", None]))


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_outputs_of_other_libraries(task: str, made: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    model = made(task)
    wanted = getattr(model, task)(TEXTS)
    tensors, column = (getattr(model, task)(TEXTS, output=output) for output in ("torch", "arrow"))
    for one, other, third in zip(wanted, tensors, column, strict=True):
        assert isinstance(other, torch.Tensor)
        np.testing.assert_array_equal(one, other.numpy())
        np.testing.assert_array_equal(one, np.array(third.as_py(), np.float32))
    kind = column.type if task == "embed" else column.type.value_type
    assert kind == arrow.list_(arrow.float32(), 32)
    assert len(getattr(model, task)([], output="arrow")) == 0
    with pytest.raises(headrace.InputError, match="output is 'jax'; choose from numpy, torch, arrow"):
        getattr(model, task)(TEXTS, output="jax")


def test_sparse_outputs() -> None:
    pytest.importorskip("pyarrow")
    from headrace.runtime.tasks.answers.output import as_output
    from headrace.runtime.tasks.sparse_embed import SparseVector, joined

    made = joined(
        [
            SparseVector(np.array([1, 3]), np.array([0.5, 2], np.float32)),
            SparseVector(np.empty(0, np.int64), np.empty(0, np.float32)),
        ],
        5,
    )
    np.testing.assert_array_equal(as_output(made, "torch").to_dense().numpy(), np.asarray(made))
    assert as_output(made, "arrow").to_pylist() == [[{"index": 1, "weight": 0.5}, {"index": 3, "weight": 2.0}], []]


@pytest.mark.parametrize("task", [*HEADS, "score", *MORE])
def test_every_task_over_an_iterator(task: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn some way ahead and no further, its answers are those of the list, and so are its messages."""
    monkeypatch.setattr(iterating, "AHEAD", 2)
    model, texts, drawn = made(task), texts_of(task), []

    def source() -> Any:
        for text in texts:
            drawn.append(text)
            yield text

    options = {"labels": ["w30", "w40"]} if task == "zero_shot_classify" else {}
    coming = getattr(model, f"{task}_iter")(source(), **options)
    answers = [next(coming)]
    assert len(drawn) == 2
    answers += coming
    for one, other in zip(answers, getattr(model, task)(texts, **options), strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_allclose(one, other, atol=1e-5)
        elif isinstance(one, float):
            assert one == pytest.approx(other, abs=1e-5)
        else:
            assert type(one) is type(other)
    broken = getattr(model, f"{task}_iter")([*texts[:3], 5], **options)
    with pytest.raises(headrace.InputError, match=r"(Text|Request) 3 is 5"):
        list(broken)


def test_an_iterator_of_rows_is_held_by_their_bytes(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers for every token reads fewer ahead, the longer they are."""
    monkeypatch.setattr(iterating, "HELD", 3 * 32 * iterating.FLOAT)
    left = iter(["w5"] * 9)
    next(made("token_embed").token_embed_iter(left))
    assert len(list(left)) == 6


def test_an_iterator_of_a_task_that_is_not_there(made: Any) -> None:
    with pytest.raises(headrace.TaskNotEnabledError):
        made("embed").classify_iter(["w5"])


def test_every_task_has_a_form_over_iterators() -> None:
    from headrace.ir import Task

    assert all(hasattr(headrace.CompiledModel, f"{task}_iter") for task in Task)
