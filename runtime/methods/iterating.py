"""Every task over an iterator, of whatever length, in memory that does not grow with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

import numpy as np

from headrace.errors import InputError
from headrace.ir import PER_TOKEN_OUTPUTS, Program, Task
from headrace.runtime.arrays import Arrays
from headrace.runtime.engine.engine import Array, Engine
from headrace.runtime.progress import bar
from headrace.runtime.tasks.answer_question import FoundAnswer
from headrace.runtime.tasks.answers.precision import require_ranges
from headrace.runtime.tasks.classify import Classification
from headrace.runtime.tasks.fill_mask import Fill
from headrace.runtime.tasks.multiple_choice import Choice
from headrace.runtime.tasks.raw import Raw
from headrace.runtime.tasks.sparse_embed import SparseVector
from headrace.runtime.tasks.token_classify import Entity
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.truncation import about
from headrace.tasks import answering

# How many texts an iterator is read ahead, so that like lengths can meet in a batch; and of arrays.
AHEAD, ARRAYS_AHEAD = 1024, 64
# The bytes that their raw outputs take, about, of tasks that answer for every token; and those of a number.
HELD, FLOAT = 256 * 1024 * 1024, 4
PAIRED = (Task.CLASSIFY, Task.SCORE, Task.ANSWER_QUESTION)


class Iterating(ABC):
    """A compiled model over iterators: one answer a text, as they are drawn. Each reads the iterator some way ahead.

    Options are those of the method without `_iter`, and so are errors, which come when the text's turn does.
    """

    engine: Engine
    program: Program
    _reader: Texts | Arrays
    _first: int

    @abstractmethod
    def counting_from(self, first: int) -> Self:
        """The same model, whose messages number texts from `first`."""

    def embed_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[Array]:
        """One vector [d] a text.

        Raises:
            InputError: a precision that needs ranges, without them: those of some texts are not those of all.
        """
        require_ranges(options.get("precision"), options.get("ranges"))
        return self._drawn(Task.EMBED, texts, options)

    def token_embed_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[Array]:
        """One vector a token, [t, d] a text."""
        return self._drawn(Task.TOKEN_EMBED, texts, options)

    def sparse_embed_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[SparseVector]:
        """One sparse vector a text."""
        return self._drawn(Task.SPARSE_EMBED, texts, options)

    def multi_embed_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[Array]:
        """The vectors of each text that score, [t, d]."""
        return self._drawn(Task.MULTI_EMBED, texts, options)

    def classify_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[Classification]:
        """The best label of each text or pair of texts."""
        return self._drawn(Task.CLASSIFY, texts, options)

    def score_iter(self, pairs: Iterable[Any], **options: Any) -> Iterator[float]:
        """How well the two texts of each pair fit."""
        return self._drawn(Task.SCORE, pairs, options)

    def token_classify_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[list[Entity]]:
        """The labelled tokens or spans of each text."""
        return self._drawn(Task.TOKEN_CLASSIFY, texts, options)

    def fill_mask_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[list[list[Fill]]]:
        """The likeliest tokens of each mask token of each text."""
        return self._drawn(Task.FILL_MASK, texts, options)

    def zero_shot_classify_iter(
        self, texts: Iterable[str], labels: list[str], **options: Any
    ) -> Iterator[Classification]:
        """Which of the labels fits each text best."""
        return self._drawn(Task.ZERO_SHOT_CLASSIFY, texts, options | {"labels": labels})

    def answer_question_iter(self, pairs: Iterable[Any], **options: Any) -> Iterator[list[FoundAnswer]]:
        """The likeliest parts of each context that answer its question."""
        return self._drawn(Task.ANSWER_QUESTION, pairs, options)

    def multiple_choice_iter(self, questions: Iterable[Any], **options: Any) -> Iterator[Choice]:
        """Which of several texts goes on best from one, for each request."""
        return self._drawn(Task.MULTIPLE_CHOICE, questions, options)

    def raw_iter(self, texts: Iterable[Any], **options: Any) -> Iterator[Raw]:
        """What the model's own head returns of each text or array."""
        return self._drawn(Task.RAW, texts, options)

    def _drawn(self, task: Task, texts: Any, options: dict[str, Any]) -> Iterator[Any]:
        """The method's answers to some texts at a time; whether the task can be run is said at once."""
        chosen = self.engine.require(task)
        source = self._reader.drawn(texts, pairs=chosen in PAIRED)
        return self._in_parts(chosen, source, _count(texts), dict(options))

    def _in_parts(
        self, task: Task, source: Iterator[Any], count: int | None, options: dict[str, Any]
    ) -> Iterator[Any]:  # fmt: skip
        shown, done = options.pop("progress", None), 0
        with bar(f"{task}: texts", count, shown) as line:
            while some := self._ahead(task, source):
                if all(isinstance(one, (int, np.integer)) for one in some):  # a list of them is one request of ids
                    number = self._first + done
                    raise InputError(f"Text {number} is {some[0]!r}; here a str is accepted, or token ids.")
                counted = self.counting_from(self._first + done)
                for answer in getattr(counted, task)(some, progress=False, **options):
                    yield answer
                    line.advance(1)
                done += len(some)

    def _ahead(self, task: Task, source: Iterator[Any]) -> list[Any]:
        """The next requests: so many as can be held with their raw outputs."""
        if isinstance(self._reader, Arrays):
            return list(islice(source, ARRAYS_AHEAD))
        output = answering(self.program, task)
        row = FLOAT * output.width if output.kind in PER_TOKEN_OUTPUTS else 0
        taken, held = list[Any](), 0
        for one in islice(source, AHEAD):
            taken.append(one)
            held += row * about(one, None)
            if held >= HELD:
                break
        return taken


def _count(texts: Any) -> int | None:
    """How many there are, where that is known before they are drawn."""
    try:
        return 1 if isinstance(texts, str) else len(texts)
    except Exception:  # of whatever library it is of
        return None
