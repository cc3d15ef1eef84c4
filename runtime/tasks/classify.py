"""classify: the best label of a text, or of a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from headrace.ir import Labels
from headrace.runtime.tasks.activation import activate
from headrace.runtime.tasks.interface import Answering, Call, Command, Prompt
from headrace.runtime.tasks.records import scored


@dataclass(frozen=True)
class Classification:
    """The best label of a text, its score, and the scores of all labels in the model's order."""

    label: str
    score: float
    scores: dict[str, float]


def classify(call: Call, texts: Any, prompt: Prompt = None) -> list[Classification]:
    """See `CompiledModel.classify`."""
    return classified(call, call.drawn(texts, pairs=True), prompt)


def classified(call: Call, listed: list[Any], prompt: str | None) -> list[Classification]:
    """The classification of each text, or of each pair."""
    call.lane()
    assert call.program.facts.labels is not None
    pairs = bool(listed) and isinstance(listed[0], (tuple, list))
    return [classification(row, call.program.facts.labels) for row in call.rows(listed, pairs=pairs, prompt=prompt)]


def classification(logits: ArrayLike, labels: Labels) -> Classification:
    """One text's logits [labels] as scores by the model's own rule."""
    scores = activate(logits, labels.activation)
    best = int(scores.argmax())
    return Classification(
        labels.names[best], float(scores[best]), dict(zip(labels.names, map(float, scores), strict=True))
    )


SAYS = 'The best label of each text or pair: {"label": ..., "score": ..., "scores": {...}}.'
TASK = Answering(classify, Command(SAYS, scored, pairs=True))
