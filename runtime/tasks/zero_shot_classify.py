"""zero_shot_classify: which of the labels that a call names fit a text, by a model of what follows from a text."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Activation
from headrace.runtime.places import Places
from headrace.runtime.tasks.answers.activation import activate
from headrace.runtime.tasks.answers.records import scored
from headrace.runtime.tasks.classify import Classification
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prompts import require_unicode
from headrace.runtime.text.truncation import read_truncate
from headrace.runtime.text.validate import require_choice

PLACE = "{}"
TEMPLATE = f"This example is {PLACE}."

Labels = Annotated[list[str] | None, "A label to choose from; comes again for each."]
Template = Annotated[str, "The sentence that a label makes in place of {}."]
MultiLabel = Annotated[bool, "Whether several labels may fit, each by its own score."]


def zero_shot_classify(
    call: Call,
    texts: Any,
    labels: Labels = None,
    hypothesis_template: Template = TEMPLATE,
    multi_label: MultiLabel = False,
) -> list[Classification]:
    """See `CompiledModel.zero_shot_classify`."""
    wanted = _require_labels(labels)
    _require_template(hypothesis_template)
    require_choice("multi_label", multi_label)
    call.lane()
    listed = call.drawn(texts)
    for number, text in enumerate(listed, call.first):
        if not isinstance(text, str):
            raise InputError(f"Text {number} is {reprlib.repr(text)}; here a str is accepted.")
    if not listed:
        return []
    hypotheses = [hypothesis_template.replace(PLACE, label) for label in wanted]
    encoded = _encoded(call, listed, hypotheses)
    of_each = np.repeat(np.arange(len(listed)), len(wanted)).tolist()
    rows = np.reshape(call.encoded_rows(encoded, of_each), (len(listed), len(wanted), -1))
    held = call.program.facts.labels
    assert held is not None
    assert held.entailment is not None
    scores = _scores(rows, held.entailment, bool(multi_label) or len(wanted) == 1)
    return [_classification(wanted, one) for one in scores]


def _encoded(call: Call, texts: Sequence[str], hypotheses: list[str]) -> list[Encoded]:
    """Each text with each hypothesis; where long texts are cut, the text gives way and never the hypothesis."""
    cuts = read_truncate(call.program.facts.text.truncates if call.truncate is None else call.truncate, pairs=False)
    reader, found, shortened = call.texts(), list[Encoded](), list[int]()
    end = -1 if call.tokenizer is not None and call.tokenizer.truncation_side == "left" else 0
    for number, text in enumerate(texts, call.first):
        whole = reader.whole([(text, hypothesis) for hypothesis in hypotheses], pairs=True, first=number)
        windows = [reader.windows(one, 0, side=0, first=number) for one in whole]
        if any(len(one) > 1 for one in windows):
            if cuts is None:
                reader.fitted([max(whole, key=lambda one: one.length)], truncate=False, first=number)
            shortened.append(number - call.first)
        found += [one[end].encoded for one in windows]
    if shortened and call.truncate is None:
        reader.warn_of_cuts(shortened, len(texts), Places(call.first))
    return found


def _scores(rows: NDArray[Any], entailment: int, alone: bool) -> NDArray[np.float32]:
    """[texts, labels], of logits [texts, labels, of the head].

    Args:
        alone: whether each label is held against what contradicts it, as transformers does: the head's first label, or
            its last where the first is entailment. Else the labels against one another.
    """
    if not alone:
        return activate(rows[..., entailment], Activation.SOFTMAX)
    against = rows[..., [-1 if entailment == 0 else 0, entailment]]
    found: NDArray[np.float32] = activate(against, Activation.SOFTMAX)[..., 1]
    return found


def _classification(labels: list[str], scores: NDArray[np.float32]) -> Classification:
    best = int(scores.argmax())
    return Classification(labels[best], float(scores[best]), dict(zip(labels, map(float, scores), strict=True)))


def _require_labels(labels: Any) -> list[str]:
    if not isinstance(labels, (list, tuple)) or not labels or not all(isinstance(one, str) and one for one in labels):
        raise InputError(
            f"labels is {reprlib.repr(labels)}; the labels to choose from are accepted by labels=, as a list of str."
        )
    for label in labels:
        require_unicode(label, f"The label {label!r}")
    if twice := sorted({one for one in labels if labels.count(one) > 1}):
        raise InputError(f"labels holds {', '.join(twice)} twice. Name each once.")
    return list(labels)


def _require_template(template: Any) -> None:
    if not isinstance(template, str) or PLACE not in template:
        raise InputError(
            f"hypothesis_template is {reprlib.repr(template)}; a sentence with {{}} where the label goes is accepted, "
            f'e.g. "{TEMPLATE}"'
        )


SAYS = 'Which of --labels fits each text: {"label": ..., "score": ..., "scores": {...}}.'
TASK = Answering(zero_shot_classify, Command(SAYS, scored))
