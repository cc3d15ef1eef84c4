"""Answers to questions: those of transformers' rules, by its own tokenizer's windows and its own choice of spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError
from headrace.runtime.tasks.answer_question import FoundAnswer
from headrace.runtime.tasks.answers.spans import likeliest, likelihoods
from tests.tiny import build
from tests.words import bert_like, gpt_like

SHORT = ("w5 w6", "w7 w8 w9 w10 w11 w12 w13")
LONG = ("w5 w6 w7", " ".join(f"w{5 + 7 * place % 80}" for place in range(150)))
NULL = ("w9", "w7")


@pytest.fixture(scope="module")
def finder() -> Any:
    return build("bert", "AutoModelForQuestionAnswering", num_hidden_layers=1)


@pytest.fixture(scope="module")
def model(finder: Any) -> Any:
    named = ["input_ids", "token_type_ids", "attention_mask"]  # given so that they are saved
    return headrace.compile(finder, target="reference", tokenizer=bert_like(model_input_names=named))


def expected(
    finder: Any, pair: tuple[str, str], top_k: int, most: int, impossible: bool, longest: int, stride: int
) -> list[tuple[str, int, int, float]]:
    """What transformers' question-answering pipeline did, by the parts of it that transformers still has."""
    from transformers.pipelines.document_question_answering import select_starts_ends

    tokenizer, null, answers = bert_like(), 1e6, list[tuple[str, int, int, float]]()
    read = tokenizer(
        *pair, truncation="only_second", max_length=longest, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    for row, ids in enumerate(read["input_ids"]):
        masked = np.array([[part != 1 for part in read.sequence_ids(row)]])
        masked[0, [place for place, token in enumerate(ids) if token == tokenizer.cls_token_id]] = False
        with torch.no_grad():
            found = finder(torch.tensor([ids]), token_type_ids=torch.tensor([read["token_type_ids"][row]]))
        start, end = found.start_logits.numpy(), found.end_logits.numpy()
        starts, ends, scores, null = select_starts_ends(
            start, end, masked.astype(int), np.ones_like(masked, int), null, top_k, impossible, most
        )
        offsets = read["offset_mapping"][row]
        for first, last, score in zip(starts, ends, scores, strict=True):
            at, stop = offsets[first][0], offsets[last][1]
            answers.append((pair[1][at:stop], at, stop, float(score)))
    if impossible:
        answers.append(("", 0, 0, float(null)))
    best = dict[tuple[str, int, int], float]()
    for text, at, stop, score in sorted(answers, key=lambda one: -one[3]):
        best.setdefault((text, at, stop), score)
    return [(*place, score) for place, score in best.items() if score > 0][:top_k]


def assert_same(found: list[FoundAnswer], wanted: list[tuple[str, int, int, float]]) -> None:
    assert [(one.answer, one.start, one.end) for one in found] == [one[:3] for one in wanted]
    assert [one.score for one in found] == pytest.approx([one[3] for one in wanted], abs=1e-5)


@pytest.mark.parametrize("impossible", [False, True])
@pytest.mark.parametrize(("top_k", "most"), [(1, 15), (5, 3)])
def test_answers_equal_those_of_transformers(finder: Any, model: Any, top_k: int, most: int, impossible: bool) -> None:
    """A context within one window, one of several, and one of a single token; no part of a context comes twice."""
    pairs = [SHORT, LONG, NULL]
    found = model.answer_question(
        pairs, top_k=top_k, max_answer_len=most, handle_impossible_answer=impossible, max_seq_len=40, doc_stride=12
    )
    for pair, ours in zip(pairs, found, strict=True):
        assert_same(ours, expected(finder, pair, top_k, most, impossible, 40, 12))
        assert len({(one.start, one.end) for one in ours}) == len(ours)


def test_windows_follow_the_models_limit(finder: Any, model: Any) -> None:
    """The pipeline's: 384 tokens or the limit, and half of that or 128 shared."""
    ((ours,), (alone,)) = model.answer_question([LONG]), model.answer_question([LONG], batch_size=1)
    assert_same(ours, expected(finder, LONG, 1, 15, False, 64, 32))
    assert ours == alone


def test_an_answer_takes_whole_words() -> None:
    """Of a tokenizer that takes words apart, unless it is not asked to."""
    from headrace import examples

    tokenizer = __import__("transformers").AutoTokenizer.from_pretrained(examples.folder("rampart_ner"))
    finder = build("bert", "AutoModelForQuestionAnswering", num_hidden_layers=1, vocab_size=len(tokenizer))
    model = headrace.compile(finder, target="reference", tokenizer=tokenizer)
    pair = ("Who?", "supercalifragilistic Watson-Parker")
    pieces = model.answer_question([pair], top_k=40, max_answer_len=2, align_to_words=False)[0]
    words = model.answer_question([pair], top_k=40, max_answer_len=2)[0]
    assert any(one.start % 100 not in (0, 21, 27, 28) for one in pieces)
    assert {one.start for one in words} <= {0, 21, 27, 28}
    assert {one.end for one in words} <= {20, 27, 28, 34}
    assert words[0].score == pieces[0].score


def test_saved_and_loaded_it_answers_the_same(model: Any, tmp_path: Path) -> None:
    model.warm().save(tmp_path / "saved")
    again = headrace.load(tmp_path / "saved")
    assert list(again.tasks) == ["answer_question"]
    asked = {"top_k": 3, "handle_impossible_answer": True}
    assert again.answer_question([SHORT, LONG], **asked) == model.answer_question([SHORT, LONG], **asked)
    assert again.answer(None, [SHORT], **asked) == again.answer_question([SHORT], **asked)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (["w5"], {}, "Request 0 is 'w5'; answer_question takes pairs of a question and the context"),
        ([("w5", "")], {}, r"Request 0 is \('w5', ''\); answer_question takes pairs .* neither of them empty"),
        ([SHORT], {"top_k": 0}, "top_k is 0; an int of 1 and above is accepted"),
        ([SHORT], {"doc_stride": -1}, "doc_stride is -1; an int of 0 and above is accepted"),
        (
            [SHORT],
            {"max_seq_len": 5},
            "A window of 5 tokens .max_seq_len=5. has room for none of the text beside",
        ),
        ([SHORT], {"max_seq_len": 8, "doc_stride": 4}, "to share 4 tokens .stride, doc_stride., but one of 8 tokens"),
        ([SHORT], {"align_to_words": "no"}, "align_to_words is 'no'; True, False or None is accepted"),
    ],
)
def test_what_cannot_be_answered_is_refused(model: Any, given: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.answer_question(given, **options)


def test_no_answer_needs_a_token_that_stands_for_the_text(finder: Any) -> None:
    model = headrace.compile(finder, target="reference", tokenizer=gpt_like())
    with pytest.raises(InputError, match=r"tokenizer adds none \(cls_token\)"):
        model.answer_question([SHORT], handle_impossible_answer=True)
    assert model.answer_question([SHORT])[0][0].answer in SHORT[1]


def test_spans_come_in_order_and_within_the_context() -> None:
    logits = np.random.default_rng(5).normal(0, 2, (12, 2)).astype(np.float32)
    context = np.zeros(12, np.bool_)
    context[4:9] = True
    scores = likelihoods(logits, context)
    assert scores.sum(axis=0) == pytest.approx(1)
    found = list(likeliest(scores, context, 3))
    assert len(found) == 5 + 4 + 3
    assert all(4 <= one.first <= one.last <= min(8, one.first + 2) for one in found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert list(likeliest(scores, np.zeros(12, np.bool_), 3)) == []
