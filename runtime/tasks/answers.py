"""Raw outputs to answers: scores, labels, entities and vectors. Numpy in, numpy and plain values out."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import InputError, non_finite
from headrace.ir import Activation, Labels, Similarity
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.spans import Spans
from headrace.runtime.text.validate import read_array

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
# The label of what is no entity.
OUTSIDE = "O"


@dataclass(frozen=True)
class Classification:
    """The best label of a text, its score, and the scores of all labels in the model's order."""

    label: str
    score: float
    scores: dict[str, float]


@dataclass(frozen=True)
class Entity:
    """A labelled part of a text: `text[start:end]`; `word` is that part as the tokenizer spells it."""

    label: str
    score: float
    start: int
    end: int
    word: str


def classification(logits: ArrayLike, labels: Labels) -> Classification:
    """One text's logits [labels] as scores by the model's own rule."""
    scores = activate(logits, labels.activation)
    best = int(scores.argmax())
    return Classification(
        labels.names[best], float(scores[best]), dict(zip(labels.names, map(float, scores), strict=True))
    )


def activate(logits: ArrayLike, activation: Activation) -> Floats:
    """Scores [..., labels] in float32, exact at any size of the logits."""
    values = np.asarray(logits, np.float32)
    if activation is Activation.IDENTITY:
        return values
    if activation is Activation.SIGMOID:
        return np.exp(-np.logaddexp(np.float32(0), -values))
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    scores: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return scores


@dataclass(frozen=True)
class _Token:
    scores: Floats
    word: str
    start: int
    end: int
    continues: bool


def entities(
    logits: ArrayLike, labels: Labels, text: str, encoded: Encoded, aggregation: Aggregation = "none"
) -> list[Entity]:
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
    if aggregation not in AGGREGATIONS:
        raise InputError(f"aggregation is {aggregation!r}; choose from {', '.join(AGGREGATIONS)}.")
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


def _labelled(word: list[_Token], labels: Labels, aggregation: Aggregation, join: Callable[[list[str]], str]) -> Entity:
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


def normalise(vectors: ArrayLike) -> Floats:
    """Vectors [..., d] at unit length; a zero vector stays zero."""
    values = np.asarray(vectors, np.float64)  # squares of large float32 values overflow
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    unit: Floats = (values / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def similarity(a: ArrayLike, b: ArrayLike, by: Similarity = Similarity.COSINE) -> Floats:
    """How near vectors [n, d] and [m, d] are, [n, m]; a single vector [d] counts as one row.

    Args:
        by: what compares them; distances come negated, so that more is nearer.

    Raises:
        InputError: vectors of different widths.
    """
    try:
        left, right = (np.atleast_2d(_numbers(given)).astype(np.float64) for given in (a, b))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # a tensor refuses by the last
        raise InputError(
            f"{reprlib.repr(a)} and {reprlib.repr(b)} cannot be compared as vectors ({error}); arrays [n, d] of "
            "numbers are accepted, as embed returns them."
        ) from error
    if left.shape[-1] != right.shape[-1] or left.ndim != 2 or right.ndim != 2:
        raise InputError(
            f"Vectors of shape {np.shape(a)} and {np.shape(b)} cannot be compared; [n, d] and [m, d] of one width "
            "are accepted."
        )
    compared: Floats = COMPARED[by](left, right).astype(np.float32)
    return compared


def _cosines(left: Doubles, right: Doubles) -> Doubles:
    return _dots(*(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12) for rows in (left, right)))


def _dots(left: Doubles, right: Doubles) -> Doubles:
    dots: Doubles = left @ right.T
    return dots


def _distances(order: int, left: Doubles, right: Doubles) -> Doubles:
    """Negated, a row at a time: the differences of all with all take a width's times more memory."""
    rows = [-np.linalg.norm(row - right, ord=order, axis=-1) for row in left]
    return np.stack(rows) if rows else np.empty((0, len(right)))


COMPARED: dict[Similarity, Callable[[Doubles, Doubles], Doubles]] = {
    Similarity.COSINE: _cosines,
    Similarity.DOT: _dots,
    Similarity.EUCLIDEAN: partial(_distances, 2),
    Similarity.MANHATTAN: partial(_distances, 1),
}


def _numbers(given: Any) -> NDArray[Any]:
    array, why = read_array(given)
    if array is None:
        raise TypeError(why)
    if not array.ndim:
        raise TypeError("a vector has an axis")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{array.dtype} values are no real numbers")
    return array


def require_finite(array: NDArray[Any], what: str, dtype: str) -> NDArray[Any]:
    """The array itself, if every value is finite.

    Args:
        array: an answer, or what becomes one.
        what: names it in the message.
        dtype: the dtype that the model ran in.

    Raises:
        NonFiniteError: a NaN or an infinity.
    """
    if np.isfinite(array).all():
        return array
    raise non_finite(what, dtype)
