"""token_classify: the labelled tokens or spans of a text."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from headrace.errors import InputError
from headrace.ir import Activation, Labels
from headrace.runtime.places import Places
from headrace.runtime.tasks.activation import Floats, activate
from headrace.runtime.tasks.interface import Answering, Call, Command
from headrace.runtime.tasks.mapping import Record
from headrace.runtime.tasks.records import scored
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.spans import Spans

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
# The label of what is no entity.
OUTSIDE = "O"


@dataclass(frozen=True)
class Entity(Record):
    """A labelled part of a text: `text[start:end]`; `word` is that part as the tokenizer spells it."""

    label: str
    score: float
    start: int
    end: int
    word: str


def token_classify(
    call: Call, texts: Any, aggregation: Annotated[str, "none, simple, first, average or max."] = "none"
) -> list[list[Entity]]:
    """See `CompiledModel.token_classify`."""
    require_aggregation(aggregation)
    listed = call.drawn(texts)
    call.lane()
    labels = call.program.facts.labels
    assert labels is not None
    encoded = call.texts().encode(listed, truncate=call.truncate, offsets=True, places=Places(call.first))
    answered = zip(call.encoded_rows(encoded), listed, encoded, strict=True)
    return [entities(row, labels, text, request, aggregation) for row, text, request in answered]


def require_aggregation(aggregation: Any) -> None:
    """Refuse what is no strategy of transformers.

    Raises:
        InputError: it is none.
    """
    if not isinstance(aggregation, str) or aggregation not in AGGREGATIONS:
        raise InputError(f"aggregation is {reprlib.repr(aggregation)}; choose from {', '.join(AGGREGATIONS)}.")


@dataclass(frozen=True)
class _Token:
    scores: Floats
    word: str
    start: int
    end: int
    continues: bool


def entities(logits: ArrayLike, labels: Labels, text: str, encoded: Encoded, aggregation: str = "none") -> list[Entity]:
    """The labelled parts of one text, by the rules of transformers' token-classification pipeline.

    Args:
        logits: [tokens, labels], the tokenizer's own tokens included.
        labels: their names; those that begin with B- begin a part, and O is no entity.
        text: what was encoded.
        encoded: the text's tokens, with spans.
        aggregation: "none" answers token by token; "simple" joins neighbours of one label; "first", "average" and
            "max" before that give each word one label: its first token's, the best on average, its surest token's.
            Where the tokenizer does not mark what continues a word, a word is what stands between spaces.
    """
    require_aggregation(aggregation)
    assert encoded.spans is not None, "encoded with offsets"
    join = encoded.spans.join
    words: list[list[_Token]] = []
    for token in _tokens(activate(logits, Activation.SOFTMAX), text, encoded.spans):
        if words and token.continues and aggregation not in ("none", "simple"):
            words[-1].append(token)
        else:
            words.append([token])
    found = [_labelled(word, labels, aggregation, join) for word in words]
    if aggregation != "none":
        found = [_joined(group, join) for group in _groups(found)]
    return [entity for entity in found if entity.label != OUTSIDE]


def _tokens(scores: Floats, text: str, spans: Spans) -> Iterator[_Token]:
    for token in np.flatnonzero(~spans.special):
        start, end = spans.offsets[token]
        unknown = bool(spans.unknown[token])
        word = text[start:end] if unknown else spans.tokens[token]
        yield _Token(scores[token], word, start, end, not unknown and _continues(word, start, end, text, spans.marked))


def _continues(word: str, start: int, end: int, text: str, marked: bool) -> bool:
    """Whether a token continues the word before it.

    A mark makes the spelling longer than the text. The pipeline tells by the lengths alone, so that must be the rule.
    """
    if marked:
        return len(word) != end - start
    return start > 0 and " " not in text[start - 1 : start + 1]


def _labelled(word: list[_Token], labels: Labels, aggregation: str, join: Callable[[list[str]], str]) -> Entity:
    scores = word[0].scores
    if aggregation == "average":
        scores = np.stack([token.scores for token in word]).mean(axis=0)
    elif aggregation == "max":
        scores = max((token.scores for token in word), key=np.max)
    best = int(scores.argmax())
    spelled = word[0].word if aggregation in ("none", "simple") else join([token.word for token in word])
    return Entity(labels.names[best], float(scores[best]), word[0].start, word[-1].end, spelled)


def _groups(found: list[Entity]) -> Iterator[list[Entity]]:
    """Neighbours of one label, each group up to the next that says it begins one."""
    group: list[Entity] = []
    for entity in found:
        if group and (entity.label.startswith("B-") or _kind(entity.label) != _kind(group[-1].label)):
            yield group
            group = []
        group.append(entity)
    if group:
        yield group


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _joined(group: list[Entity], join: Callable[[list[str]], str]) -> Entity:
    # The pipeline cuts at the first hyphen whatever stands before it, so "PER-x" is served as "x".
    label = group[0].label.split("-", 1)[-1]
    score = float(np.mean([entity.score for entity in group]))
    return Entity(label, score, group[0].start, group[-1].end, join([entity.word for entity in group]))


SAYS = 'The labelled tokens or spans of each text: {"entities": [{"label": ..., "start": ..., ...}]}.'
TASK = Answering(token_classify, Command(SAYS, lambda found: {"entities": [scored(entity) for entity in found]}))
