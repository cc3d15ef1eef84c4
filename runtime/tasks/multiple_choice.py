"""multiple_choice: which of several texts goes on best from one."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.ir import Activation
from headrace.runtime.tasks.answers.activation import activate
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.answers.records import shortest
from headrace.runtime.tasks.interface import Answering, Call, Command


@dataclass(frozen=True)
class Choice(Record):
    """The best of the choices and its place among them, its score, and the score of each."""

    index: int
    choice: str
    score: float
    scores: tuple[float, ...]


def multiple_choice(call: Call, questions: Any) -> list[Choice]:
    """See `CompiledModel.multiple_choice`."""
    listed = call.drawn(questions)
    for number, one in enumerate(listed, call.first):
        _require_question(one, number)
    call.lane()
    pairs = [(text, choice) for text, choices in listed for choice in choices]
    asked = [place for place, (_, choices) in enumerate(listed) for _ in choices]
    logits = np.asarray(call.rows(pairs, asked, pairs=True), np.float32).reshape(-1)
    ends = accumulate((len(choices) for _, choices in listed), initial=0)
    return [
        _chosen(list(choices), logits[first:stop])
        for (_, choices), (first, stop) in zip(listed, pairwise(ends), strict=True)
    ]


def _require_question(one: Any, number: int) -> None:
    fits = isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[0], str)
    if not fits or not isinstance(one[1], (tuple, list)) or not one[1] or not all(isinstance(c, str) for c in one[1]):
        raise InputError(
            f"Request {number} is {reprlib.repr(one)}; multiple_choice takes a text and the texts to choose from: "
            '("It rained, so", ["he took an umbrella.", "he took a nap."]) in a list.'
        )


def _chosen(choices: list[str], logits: np.ndarray[Any, Any]) -> Choice:
    scores = activate(logits, Activation.SOFTMAX)
    best = int(scores.argmax())
    return Choice(best, choices[best], float(scores[best]), tuple(map(float, scores)))


def record(found: Choice) -> dict[str, Any]:
    """The choice as a JSON object."""
    scores = [shortest(score) for score in found.scores]
    return {"index": found.index, "choice": found.choice, "score": shortest(found.score), "scores": scores}


SAYS = 'The best choice, of lines {"text": ..., "choices": [...]}: {"index": ..., "choice": ..., "scores": [...]}.'
TASK = Answering(multiple_choice, Command(SAYS, record, pairs=True, keys=("text", "choices")))
