"""The tokens and words of a text, and which label each has, by the rules of transformers' pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from headrace.ir import Activation, Labels
from headrace.runtime.tasks.answers.activation import Floats, activate
from headrace.runtime.text.spans import Spans
from headrace.runtime.text.windows import Window

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
BY_TOKEN = ("none", "simple")


@dataclass(frozen=True)
class Token:
    """A token of the text: `text[start:end]`, as it is spelled, and its place among all tokens of the request."""

    word: str
    start: int
    end: int
    index: int
    continues: bool
    given: int


@dataclass(frozen=True, eq=False)
class Unit:
    """A token, or a word of several, with the score of every label.

    Attributes:
        place: its number among those of the text.
        label: of the best score.
        index: its first token's place among all of the request.
        given: the number of the word that it is, or is part of, where the text came in words; else -1.
    """

    place: int
    label: str
    scores: Floats
    word: str
    start: int
    end: int
    index: int
    given: int

    @property
    def score(self) -> float:
        """The best of its scores."""
        return float(self.scores.max())


def read_tokens(text: str, spans: Spans) -> list[Token]:
    """The tokens of a text but those that the tokenizer added."""
    found = list[Token]()
    for index in np.flatnonzero(~spans.special).tolist():
        start, end = spans.offsets[index]
        unknown = bool(spans.unknown[index])
        word = text[start:end] if unknown else spans.tokens[index]
        if not spans.split:
            given, continues = -1, not unknown and _continues(word, start, end, text, spans.marked)
        else:
            given = int(spans.words[index])
            continues = bool(found) and given == found[-1].given
        found.append(Token(word, start, end, index, continues, given))
    return found


def _continues(word: str, start: int, end: int, text: str, marked: bool) -> bool:
    """Whether a token continues the word before it.

    A mark makes the spelling longer than the text. The pipeline tells by the lengths alone, so that must be the rule.
    """
    if marked:
        return len(word) != end - start
    return start > 0 and " " not in text[start - 1 : start + 1]


@dataclass(frozen=True)
class Tagger:
    """What gives the units of a text their labels.

    Attributes:
        labels: the head's.
        aggregation: "none" and "simple" take each token for itself; "first", "average" and "max" give each word one
            label: its first token's, the best on average, its surest token's.
        join: spells tokens as text.
    """

    labels: Labels
    aggregation: str
    join: Callable[[list[str]], str]

    def units(self, tokens: Sequence[Token], windows: Sequence[Window], rows: Sequence[ArrayLike]) -> list[list[Unit]]:
        """What each window holds whole, in order; a word that none holds whole is the first's that it begins in.

        Args:
            tokens: of the whole text.
            rows: the logits [tokens, labels] of each window, the tokenizer's own tokens included.
        """
        scores = [self._scores(window, logits) for window, logits in zip(windows, rows, strict=True)]
        across = np.empty((len(tokens), len(self.labels.names)), np.float32)
        for window, found in reversed(list(zip(windows, scores, strict=True))):
            across[window.first : window.stop] = found
        words, later = self._words(tokens), [*windows[1:], None]
        return [
            [
                self._unit(
                    place,
                    tokens[first:stop],
                    found[first - window.first : stop - window.first] if stop <= window.stop else across[first:stop],
                )
                for place, (first, stop) in enumerate(words)
                if window.first <= first < window.stop and (stop <= window.stop or after is None or first < after.first)
            ]
            for window, found, after in zip(windows, scores, later, strict=True)
        ]

    def _words(self, tokens: Sequence[Token]) -> list[tuple[int, int]]:
        """Where each word begins and ends among the tokens; or each token, where they are taken for themselves."""
        alone = self.aggregation in BY_TOKEN
        begins = [place for place, token in enumerate(tokens) if alone or not place or not token.continues]
        return list(pairwise([*begins, len(tokens)]))

    def _scores(self, window: Window, logits: ArrayLike) -> Floats:
        assert window.encoded.spans is not None
        return activate(np.asarray(logits)[~window.encoded.spans.special], Activation.SOFTMAX)

    def _unit(self, place: int, tokens: Sequence[Token], rows: Floats) -> Unit:
        scores = rows[0]
        if self.aggregation == "average":
            scores = rows.mean(axis=0)
        elif self.aggregation == "max":
            scores = rows[int(rows.max(axis=1).argmax())]
        spelled = tokens[0].word if self.aggregation in BY_TOKEN else self.join([token.word for token in tokens])
        label = self.labels.names[int(scores.argmax())]
        first, last = tokens[0], tokens[-1]
        return Unit(place, label, scores, spelled, first.start, last.end, first.index, first.given)
