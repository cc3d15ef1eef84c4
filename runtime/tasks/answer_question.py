"""answer_question: the parts of a context that answer a question."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from headrace.errors import InputError
from headrace.runtime.tasks.answers.activation import Floats
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.answers.records import scored
from headrace.runtime.tasks.answers.spans import characters, likeliest, likelihoods
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.validate import counts, require_choice
from headrace.runtime.text.windows import Window, flat

# As of transformers' pipeline: the tokens of a window, of which neighbouring ones share half at most.
MOST_TOKENS, MOST_SHARED = 384, 128

TopK = Annotated[int, "How many answers to each question."]
MaxAnswerLen = Annotated[int, "Tokens of an answer at most."]
DocStride = Annotated[int | None, "Tokens that neighbouring windows of a long context share; else 128, or half of one."]
MaxSeqLen = Annotated[int | None, "Tokens of a question and a window of its context at most; else 384."]
Impossible = Annotated[bool, "Whether no answer, an empty one, is an answer too."]
AlignToWords = Annotated[bool, "Whether an answer that begins or ends within a word takes the whole word."]


@dataclass(frozen=True)
class FoundAnswer(Record):
    """An answer: `context[start:end]` and how probable it is; empty where the context holds none."""

    answer: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Search:
    """What is looked for in a context: so many of the likeliest spans, of at most so many tokens."""

    top_k: int
    most: int
    impossible: bool
    words: bool


def answer_question(
    call: Call,
    pairs: Any,
    top_k: TopK = 1,
    max_answer_len: MaxAnswerLen = 15,
    doc_stride: DocStride = None,
    max_seq_len: MaxSeqLen = None,
    handle_impossible_answer: Impossible = False,
    align_to_words: AlignToWords = True,
) -> list[list[FoundAnswer]]:
    """See `CompiledModel.answer_question`."""
    _require_counts(1, top_k=top_k, max_answer_len=max_answer_len)
    _require_counts(1, **({} if max_seq_len is None else {"max_seq_len": max_seq_len}))
    _require_counts(0, **({} if doc_stride is None else {"doc_stride": doc_stride}))
    require_choice("handle_impossible_answer", handle_impossible_answer)
    require_choice("align_to_words", align_to_words)
    if call.truncate is not None:
        raise InputError("A long context is read in windows, so that there is nothing to truncate. Leave truncate out.")
    listed = _require_pairs(call.drawn(pairs, pairs=True), call.first)
    call.lane()
    windows, side = _windows(call, listed, doc_stride, max_seq_len)
    null = _null_token(call, windows, bool(handle_impossible_answer))
    rows = iter(call.encoded_rows(*flat(windows)))
    search = Search(top_k, max_answer_len, bool(handle_impossible_answer), bool(align_to_words))
    return [
        _found(cut, [next(rows) for _ in cut], context, side, null, search)
        for cut, (_, context) in zip(windows, listed, strict=True)
    ]


def _require_counts(least: int, **given: Any) -> None:
    for name, value in given.items():
        if not counts(value, least=least):
            raise InputError(f"{name} is {value!r}; an int of {least} and above is accepted.")


def _null_token(call: Call, windows: list[list[Window]], needed: bool) -> int | None:
    """The token that stands for a whole text, which the answer begins and ends with where there is none."""
    null: int | None = getattr(call.tokenizer, "cls_token_id", None)
    if needed and any(null not in window.encoded.ids for cut in windows for window in cut):
        raise InputError(
            "handle_impossible_answer holds answers against the token that stands for the whole text, and the "
            "tokenizer adds none (cls_token). Leave it out."
        )
    return null


def _require_pairs(listed: Sequence[Any], first: int) -> list[tuple[str, str]]:
    for number, one in enumerate(listed, first):
        pair = isinstance(one, (tuple, list)) and len(one) == 2
        if not pair or not all(isinstance(part, str) and part for part in one):
            raise InputError(
                f"Request {number} is {reprlib.repr(one)}; answer_question takes pairs of a question and the context "
                "that may hold its answer, neither of them empty: tuples of two str."
            )
    return [(question, context) for question, context in listed]


def _windows(
    call: Call, listed: list[tuple[str, str]], stride: int | None, longest: int | None
) -> tuple[list[list[Window]], int]:
    """The windows of each context, its question in each, and which of the two texts the context is."""
    reader: Texts = call.texts()
    reader = reader.limited(longest or MOST_TOKENS, f"max_seq_len={longest or MOST_TOKENS}")
    bound = reader.length or MOST_TOKENS
    shared = min(bound // 2, MOST_SHARED) if stride is None else stride
    side = 1 if getattr(call.tokenizer, "padding_side", "right") == "right" else 0
    ordered = listed if side == 1 else [(context, question) for question, context in listed]
    whole = reader.whole(ordered, pairs=True, first=call.first)
    return [reader.windows(one, shared, side=side, first=number) for number, one in enumerate(whole, call.first)], side


def _found(
    windows: Sequence[Window], rows: Sequence[Floats], context: str, side: int, null: int | None, search: Search
) -> list[FoundAnswer]:
    """The answers that the windows of one context hold: each once, the likeliest first."""
    best, nothing = dict[tuple[int, int], float](), 1.0
    for window, logits in zip(windows, rows, strict=True):
        spans = window.encoded.spans
        assert spans is not None
        inside, nulls = spans.sides == side, np.flatnonzero(window.encoded.ids == null)
        counted = inside.copy()
        counted[nulls] = True
        if not counted.any():
            continue
        scores = likelihoods(logits, counted)
        if len(nulls):
            nothing = min(nothing, float(scores[nulls[0], 0] * scores[nulls[0], 1]))
        seen = set[tuple[int, int]]()
        for span in likeliest(scores, inside, search.most):
            place = characters(spans, span, search.words)
            seen.add(place)
            best[place] = max(best.get(place, 0.0), span.score)
            if len(seen) == search.top_k:
                break
    found = [FoundAnswer(context[start:end], score, start, end) for (start, end), score in best.items()]
    found += [FoundAnswer("", nothing, 0, 0)] if search.impossible else []
    return sorted(found, key=lambda one: -one.score)[: search.top_k]


SAYS = 'Answers from a context, of lines {"question": ..., "context": ...}: {"answers": [{"answer": ..., ...}]}.'
TASK = Answering(
    answer_question,
    Command(SAYS, lambda found: {"answers": [scored(one) for one in found]}, pairs=True, keys=("question", "context")),
)
