"""What the module of a task defines (`TASK`), and the call that it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

from headrace.errors import InputError
from headrace.ir import Program, Task
from headrace.runtime.places import Numbers, Places, once
from headrace.tasks import answering

if TYPE_CHECKING:
    from headrace.runtime.arrays import Arrays
    from headrace.runtime.engine.engine import Array, Engine
    from headrace.runtime.engine.lane import Lane
    from headrace.runtime.engine.padded_batch import Rows
    from headrace.runtime.engine.request import Request
    from headrace.runtime.text.encoded import Encoded, Tokens
    from headrace.runtime.text.texts import Texts

# An option of a task is a parameter of its function; the words beside its type are the command line's, which has none
# of those without words.
Prompt = Annotated[str | None, "A prompt's name in the folder, or its text."]
# Texts, token ids, both, or arrays: one alone, or any number in an order.
Requests = str | Iterable[Any]
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


class Options(TypedDict, total=False):
    """The options that every task has.

    Attributes:
        truncate: whether to cut longer texts; None follows a sentence-transformers folder, else a long text is an
            error. Of pairs also "longest_first" (as True), "only_first" and "only_second".
        max_length: tokens a text at most in this call, over what the folder and `headrace.compile` say.
        batch_size: requests in a step at most; None packs by tokens.
        progress: whether to show a bar; None does on a terminal and in a notebook.
    """

    truncate: bool | str | None
    max_length: int | None
    batch_size: int | None
    progress: bool | None


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
    truncate: bool | str | None = None
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

    def drawn(self, given: Any, pairs: bool = False) -> Sequence[Any]:
        """The texts or arrays that were given, one alone as a list of one; ids in one array as `Ragged`."""
        return self.reader.listed(given, pairs=pairs)

    def once(self, listed: Sequence[Any], texts: Sequence[int] | None = None) -> tuple[Sequence[Any], Places]:
        """Each of the requests once, and where it stands among all: the same is computed once.

        Args:
            texts: which of the caller's texts each is a part of, for messages; None where each is one.
        """
        return once(listed, self.first, texts)

    def rows(self, listed: Sequence[Any], texts: Sequence[int] | None = None, **options: Any) -> list[Array]:
        """The raw output of each, in order. Some are read while others run; options are the reader's."""
        kept, places = self.once(listed, texts)
        return self.rows_of(self._parts(kept, places, options), len(kept), places)

    def answered(self, listed: Sequence[Any], **options: Any) -> Iterator[tuple[Numbers, Rows]]:
        """`rows` as they come, by their places: what comes is good until the next is asked for."""
        kept, places = self.once(listed)
        parts = self._parts(kept, places, options)
        steps = self.engine.answered(self.task, parts, len(kept), self.batch_size, self.progress, places)
        return (places.step(*step) for step in steps)

    def answered_together(
        self, tasks: Sequence[Task], listed: Sequence[Any], requests: dict[int, Request], **options: Any
    ) -> Iterator[tuple[Numbers, list[Rows]]]:
        """`answered` of several tasks in one pass, whose raw outputs come in the order of the tasks.

        Args:
            requests: each text as it was read is put in its place, before what is answered to it comes.
        """
        kept, places = self.once(listed)
        sizes = self.engine.sizes(*tasks)
        read = self.reader.ahead(kept, places=places, sizes=sizes, truncate=self.truncate, **options)
        parts = noted(read, places, requests)
        steps = self.engine.answered_together(tasks, parts, len(kept), self.batch_size, self.progress, places)
        for step, outputs in steps:
            spread = [places.step(step, rows) for rows in outputs]
            yield spread[0][0], [rows for _, rows in spread]

    def rows_of(self, parts: Iterable[Sequence[Request]], count: int, places: Places | None = None) -> list[Array]:
        """The raw output of requests that come in parts, as a reader's `ahead` gives them, in the caller's order."""
        places = places or Places(self.first)
        made = self.engine.run_parts(self.task, parts, count, self.batch_size, self.progress, places)
        return places.spread(made)

    def sizes(self) -> Any:
        """Of the parts in which a reader reads ahead."""
        return self.engine.sizes(self.task)

    def encoded_rows(self, encoded: list[Encoded], texts: Sequence[int] | None = None) -> list[Array]:
        """The raw output of texts that are tokenised, or of parts of them."""
        kept, places = self.once(encoded, texts)
        return self.rows_of([kept], len(kept), places)

    def encoded_steps(self, tokens: Tokens) -> Iterator[tuple[Numbers, Rows]]:
        """`encoded_rows` of each as they come, by their places: what comes is good until the next is asked for."""
        return self.engine.answered(self.task, [tokens], len(tokens), self.batch_size, self.progress)

    def texts(self) -> Texts:
        """The reader of texts, for answers that are parts of a text.

        Raises:
            InputError: the model reads arrays.
        """
        from headrace.runtime.arrays import Arrays

        if isinstance(self.reader, Arrays):
            raise self.reader.no_text()
        return self.reader

    def _parts(self, kept: Sequence[Any], places: Places, options: dict[str, Any]) -> Iterator[Sequence[Request]]:
        sizes = self.engine.sizes(self.task)
        return self.engine.parts(self.reader, kept, places=places, sizes=sizes, truncate=self.truncate, **options)


def require_known(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Refuse an option that there is not, by its name.

    Raises:
        InputError: one of those that were given is none of the known.
    """
    for name in given.keys() - set(known):
        raise InputError(f"There is no option {name!r} {what}; {', '.join(known) or 'none'} are accepted.")


def noted(
    parts: Iterable[Sequence[Request]], places: Places, requests: dict[int, Request]
) -> Iterator[Sequence[Request]]:
    """The parts as they come, each request of which is put in its places."""
    read = 0
    for part in parts:
        for number, request in enumerate(part, read):
            requests.update(dict.fromkeys(places.of(number), request))
        read += len(part)
        yield part
