"""What the module of a task defines (`TASK`), and the call that it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from headrace.ir import Program, Task
from headrace.tasks import answering

if TYPE_CHECKING:
    from headrace.runtime.arrays import Arrays
    from headrace.runtime.engine.engine import Array, Engine
    from headrace.runtime.engine.lane import Lane
    from headrace.runtime.engine.padded_batch import Rows
    from headrace.runtime.engine.request import Request
    from headrace.runtime.text.encoded import Encoded
    from headrace.runtime.text.tokenizer import Texts

# An option of a task is a parameter of its function; the words beside its type are the command line's, which has none
# of those without words.
Prompt = Annotated[str | None, "A prompt's name in the folder, or its text."]
PromptName = Annotated[str | None, "A prompt's name in the folder, and nothing else."]


@dataclass(frozen=True)
class Command:
    """A task's command: `headrace NAME MODEL TEXTS`.

    Attributes:
        says: what it writes, a line for people.
        record: one answer as a JSON object.
        pairs: whether a request may be a pair of texts.
        words: whether a text may come in words.
        keys: what a JSON object calls the two of a pair; the second is a list where it is "choices".
    """

    says: str
    record: Callable[[Any], dict[str, Any]]
    pairs: bool = False
    words: bool = False
    keys: tuple[str, str] = ("text", "pair")


class Each(NamedTuple):
    """A task's answers, a text at a time.

    Attributes:
        answer: of a text's raw output, and the text as it was read.
        join: of the answers to all texts.
    """

    answer: Callable[[Any, Any], Any]
    join: Callable[[list[Any]], Any] = list


@dataclass(frozen=True)
class Answering:
    """How a task is answered.

    Attributes:
        answer: from a `Call`, the texts and the task's own options to answers, one a text in their order.
        command: its command; None leaves the task to Python.
        each: what makes an answer of one text's raw output, by the model's own options, so that other tasks may be
            answered in the same pass; None where texts are read for this task alone. Raises InputError where they are
            so for this model.
    """

    answer: Callable[..., Any]
    command: Command | None = None
    each: Callable[[Call], Each] | None = None


@dataclass(frozen=True)
class Call:
    """One call of a task: what runs it, and the options that every task has.

    Attributes:
        reader: makes requests of texts, or of arrays.
        tokenizer: the one that texts are read with.
        kept: what the modules of tasks make once a model, by its kind.
        max_length: the user's own limit of a text in tokens.
        first: the number of the first text in messages.
    """

    task: Task
    engine: Engine
    reader: Texts | Arrays
    tokenizer: Any
    kept: dict[Any, Any]
    max_length: int | None
    first: int
    truncate: bool | None = None
    batch_size: int | None = None
    progress: bool | None = None

    @property
    def program(self) -> Program:
        """The facts of the model."""
        return self.engine.program

    def lane(self) -> Lane:
        """What answers the task, compiled on first use."""
        return self.engine.lane(self.task, self.progress)

    @property
    def width(self) -> int:
        """How wide the task's raw output is."""
        return answering(self.program, self.task).width

    def drawn(self, given: Any, pairs: bool = False) -> list[Any]:
        """The texts or arrays that were given, one alone as a list of one."""
        return list(self.reader.drawn(given, pairs=pairs))

    def rows(self, listed: list[Any], **options: Any) -> list[Array]:
        """The raw output of each, in order. Some are read while others run; options are the reader's."""
        return self._run(self._parts(listed, options), len(listed))

    def answered(self, listed: list[Any], **options: Any) -> Iterator[tuple[Sequence[int], Rows]]:
        """`rows` as they come, by their places: what comes is good until the next is asked for."""
        parts = self._parts(listed, options)
        return self.engine.answered(self.task, parts, len(listed), self.batch_size, self.progress, self.first)

    def answered_together(
        self, tasks: Sequence[Task], listed: list[Any], requests: list[Request], **options: Any
    ) -> Iterator[tuple[Sequence[int], list[Rows]]]:
        """`answered` of several tasks in one pass, whose raw outputs come in the order of the tasks.

        Args:
            requests: each text as it was read is added to it, before what is answered to it comes.
        """
        parts = kept(self._parts(listed, options, tasks), requests)
        return self.engine.answered_together(tasks, parts, len(listed), self.batch_size, self.progress, self.first)

    def rows_of(self, parts: Iterable[Sequence[Request]], count: int) -> list[Array]:
        """The raw output of requests that come in parts, as a reader's `ahead` gives them."""
        return self._run(parts, count)

    def sizes(self) -> Any:
        """Of the parts in which a reader reads ahead."""
        return self.engine.sizes(self.task)

    def encoded_rows(self, encoded: list[Encoded]) -> list[Array]:
        """The raw output of texts that are tokenised."""
        return self._run([encoded], len(encoded))

    def texts(self) -> Texts:
        """The reader of texts, for answers that are parts of a text.

        Raises:
            InputError: the model reads arrays.
        """
        from headrace.runtime.arrays import Arrays

        if isinstance(self.reader, Arrays):
            raise self.reader.no_text()
        return self.reader

    def _parts(
        self, listed: list[Any], options: dict[str, Any], tasks: Sequence[Task] = ()
    ) -> Iterator[Sequence[Request]]:
        sizes = self.engine.sizes(*(tasks or (self.task,)))
        return self.reader.ahead(listed, first=self.first, sizes=sizes, truncate=self.truncate, **options)

    def _run(self, parts: Iterable[Sequence[Request]], count: int) -> list[Array]:
        return self.engine.run_parts(self.task, parts, count, self.batch_size, self.progress, self.first)


def kept(parts: Iterable[Sequence[Request]], requests: list[Request]) -> Iterator[Sequence[Request]]:
    """The parts as they come, each request of which is added to `requests`."""
    for part in parts:
        requests += part
        yield part
