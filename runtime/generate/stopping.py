"""When a text ends, where it is cut, and how much of it may be told before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from headrace.runtime.generate.detokenizer import Detokenizer, Vocabulary


class FinishReason(StrEnum):
    """Why a text ended: at an end token, a stop string or where its grammar ends; or at the most tokens it may have."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class StopRules:
    """What ends a text.

    Attributes:
        tokens: ids of which each ends it, itself no part of the text.
        strings: each ends it, and is cut off with all behind it.
        least: so many tokens come before anything ends it.
        most: so many end it.
    """

    tokens: Collection[int]
    strings: tuple[str, ...]
    least: int
    most: int


class Stopping:
    """One text as its tokens come.

    Attributes:
        ids: its tokens, with the one that ended it.
        reason: why it ended, None before.
    """

    def __init__(self, vocabulary: Vocabulary | None, rules: StopRules) -> None:
        """Begin with no token.

        Args:
            vocabulary: None for a model without a tokenizer, which answers in ids alone.
        """
        assert vocabulary is not None or not rules.strings, "stop strings need a tokenizer"
        self.ids: list[int] = []
        self.reason: FinishReason | None = None
        self._rules, self._tokens = rules, frozenset(rules.tokens)
        self._longest = max(map(len, rules.strings), default=0)
        self._detokenizer = None if vocabulary is None else Detokenizer(vocabulary)
        # How many tokens were read as text, where it is looked through from, what it ended at when it could not yet be
        # stopped, where it is cut, how much of it was told.
        self._read = self._from = self._early = 0
        self._cut: int | None = None
        self._told = 0
        self._ended = False  # by its last token

    def push(self, token: int) -> FinishReason | None:
        """The next token; why the text ends with it, None where it goes on."""
        assert self.reason is None, "the text has ended"
        self.ids.append(token)
        late = len(self.ids) >= self._rules.least
        self._ended = late and token in self._tokens
        if self._ended or (self._longest and self._stops(late)):
            self.reason = FinishReason.STOP
        elif len(self.ids) >= self._rules.most:
            self.reason = FinishReason.LENGTH
        return self.reason

    def end(self) -> None:
        """The grammar of the text ends here: nothing more is to come."""
        self.reason = FinishReason.STOP

    @property
    def text(self) -> str:
        """The text so far; once it has ended, cut at the stop string."""
        if self._detokenizer is None:
            return ""
        self._catch_up(self._detokenizer)
        return (self._detokenizer.text + self._detokenizer.tail)[: self._cut]

    def take(self) -> str:
        """What may be told now and was not: never what a stop string could still swallow."""
        if self._detokenizer is None:
            return ""
        self._catch_up(self._detokenizer)
        if self.reason is not None:
            sure = self.text
        else:
            sure = self._detokenizer.text
            sure = sure[: len(sure) - self._held_back(sure)]
        piece, self._told = sure[self._told :], max(self._told, len(sure))
        return piece

    def _catch_up(self, detokenizer: Detokenizer) -> None:
        """Read what has come since as text, but for the token that ended it."""
        upto = len(self.ids) - self._ended
        if upto > self._read:
            detokenizer.push(self.ids[self._read : upto])
            self._read = upto

    def _stops(self, late: bool) -> bool:
        """Whether a stop string is there that was not whole before it could stop anything."""
        assert self._detokenizer is not None
        self._catch_up(self._detokenizer)
        text, tail = self._detokenizer.text, self._detokenizer.tail
        if not late:
            self._early = len(text) + len(tail)
            return False
        starts = {one: max(0, self._from, self._early - len(one) + 1) for one in self._rules.strings}
        first = min(len(text), *starts.values())
        part = text[first:] + tail  # a text may be long, and what is new of it short
        found = (part.find(one, start - first) for one, start in starts.items())
        self._cut = min((first + place for place in found if place >= 0), default=None)
        # What is sure was looked through, but for the beginnings of stop strings at its end.
        self._from = max(self._from, len(text) - self._longest + 1)
        return self._cut is not None

    def _held_back(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if any(one.startswith(text[-n:]) for one in self._rules.strings)), 0)
