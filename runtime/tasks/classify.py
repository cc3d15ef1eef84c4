"""classify: the best label of a text, or of a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from numpy.typing import ArrayLike

from headrace.ir import Activation, Labels
from headrace.runtime.tasks.answers.activation import activate
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.answers.records import scored
from headrace.runtime.tasks.interface import Answering, Call, Command, Prompt, PromptName
from headrace.runtime.text.prompts import one_prompt
from headrace.runtime.text.validate import require_choice

Raw = Annotated[bool, "Logits as they are, in place of scores."]


@dataclass(frozen=True)
class Classification(Record):
    """The best label of a text, its score, and the scores of all labels in the model's order."""

    label: str
    score: float
    scores: dict[str, float]


def classify(
    call: Call, texts: Any, prompt: Prompt = None, raw: Raw = False, prompt_name: PromptName = None
) -> list[Classification]:
    """See `CompiledModel.classify`."""
    prompt = one_prompt(call.program, prompt, prompt_name)
    return classified(call, call.drawn(texts, pairs=True), prompt, raw)


def classified(call: Call, listed: Sequence[Any], prompt: str | None, raw: bool = False) -> list[Classification]:
    """The classification of each text, or of each pair.

    Args:
        raw: by the logits as they are.
    """
    call.lane()
    assert call.program.facts.labels is not None
    require_choice("raw", raw)
    labels = replace(call.program.facts.labels, activation=Activation.IDENTITY) if raw else call.program.facts.labels
    pairs = bool(listed) and isinstance(listed[0], (tuple, list))
    return [classification(row, labels) for row in call.rows(listed, pairs=pairs, prompt=prompt)]


def classification(logits: ArrayLike, labels: Labels) -> Classification:
    """One text's logits [labels] as scores by the model's own rule."""
    scores = activate(logits, labels.activation)
    best = int(scores.argmax())
    return Classification(
        labels.names[best], float(scores[best]), dict(zip(labels.names, map(float, scores), strict=True))
    )


SAYS = 'The best label of each text or pair: {"label": ..., "score": ..., "scores": {...}}.'
TASK = Answering(classify, Command(SAYS, scored, pairs=True))
