"""score: how well the two texts of a pair fit; and documents ranked by it."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import InputError
from headrace.runtime.tasks.classify import classified
from headrace.runtime.tasks.interface import Answering, Call, Prompt


@dataclass(frozen=True)
class Ranked:
    """A document's place in the list that was ranked, and its score."""

    index: int
    score: float


def score(call: Call, pairs: Any, prompt: Prompt = None) -> list[float]:
    """See `CompiledModel.score`."""
    listed = call.drawn(pairs, pairs=True)
    for number, one in enumerate(listed, call.first):
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise InputError(f"Request {number} is {reprlib.repr(one)}; score takes pairs of texts: tuples of two.")
    return [classification.score for classification in classified(call, listed, prompt)]


def ranked(scores: Sequence[float]) -> list[Ranked]:
    """The documents by their scores, best first."""
    return sorted((Ranked(i, one) for i, one in enumerate(scores)), key=lambda found: -found.score)


TASK = Answering(score)
