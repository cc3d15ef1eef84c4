"""Files of texts, read a part at a time: never more of a file is in memory than two parts of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import InputError

# Rows of a part: enough for like lengths to meet in a step, few enough to be made again after a crash.
ROWS = 4096
Place = tuple[int, int]
Done = Callable[[Place], bool]


@dataclass(frozen=True)
class Lacking:
    """A row that holds no text, and why."""

    reason: str


class Part(NamedTuple):
    """Some rows of a file.

    Attributes:
        place: the row group (of Arrow's files the batch, of others 0), and which part of it.
        first: the row of the file that is its first, from 0.
        rows: texts, or why there is none.
    """

    place: Place
    first: int
    rows: list[str | Lacking]


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        column: of tables and JSON objects, the one that holds the texts.
    """

    path: Path
    column: str

    @cached_property
    def place(self) -> str:
        """Of its path."""
        return hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:16]

    @cached_property
    def key(self) -> str:
        """Of its path, and then of its bytes."""
        with self.path.open("rb") as file:
            return f"{self.place}-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    def require(self) -> None:
        """Refuse what cannot be read, before anything is.

        Raises:
            InputError: there is no such file, its kind is not known, or it has no such column of texts.
        """
        if not self.path.is_file():
            raise InputError(f"{self.path} cannot be read: there is no such file.")
        if self.path.suffix not in KINDS:
            raise InputError(f"{self.path} is of no kind that is read; {', '.join(KINDS)} are.")
        schema = _schema(self.path)
        if schema is None:
            return
        if self.column not in schema.names:
            raise InputError(
                f"{self.path} has no column {self.column!r}; its columns are {', '.join(schema.names)}. Name the one "
                "that holds the texts with --column."
            )
        kind = schema.field(self.column).type
        if not any(holds(kind) for holds in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
            raise InputError(f"The column {self.column!r} of {self.path} is {kind}; one of strings is accepted.")

    def parts(self, done: Done) -> Iterator[Part]:
        """Those that are not done, in order."""
        return KINDS[self.path.suffix](self, done)


def find_sources(inputs: Iterable[str | Path], column: str) -> list[Source]:
    """The files that are named, and those of the kinds that are read in the folders that are.

    Raises:
        InputError: one cannot be read, or there is none.
    """
    paths: list[Path] = []
    for given in map(Path, inputs):
        inside = sorted(path for path in given.rglob("*") if path.suffix in KINDS) if given.is_dir() else [given]
        paths += inside
    found = [Source(path, column) for path in dict.fromkeys(paths)]
    if not found:
        raise InputError(f"There is no file to read. Name some, or folders that hold some: {', '.join(KINDS)}.")
    for source in found:
        source.require()
    return found


def _schema(path: Path) -> Any:
    """The columns of a table, None of what is none.

    Raises:
        InputError: it is damaged.
    """
    try:
        if path.suffix == PARQUET:
            return pq.read_schema(path)
        return _batches(path)[0] if path.suffix in ARROW else None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {error}") from error


def _parquet(source: Source, done: Done) -> Iterator[Part]:
    with pq.ParquetFile(source.path) as file:
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if not all(done((group, number)) for number in range(-(-size // ROWS))):
                batches = file.iter_batches(ROWS, row_groups=[group], columns=[source.column])
                yield from _sliced(group, first, (batch.column(0) for batch in batches), done)
            first += size


def _arrow(source: Source, done: Done) -> Iterator[Part]:
    schema, batches = _batches(source.path)
    column, first = schema.get_field_index(source.column), 0
    for group, batch in enumerate(batches):
        yield from _sliced(group, first, [batch.column(column)], done)
        first += batch.num_rows


def _batches(path: Path) -> tuple[Any, Iterator[Any]]:
    """The columns of an Arrow file, and its batches as they lie on the disk."""
    mapped = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:  # a stream of batches, without an index of them
        mapped.seek(0)
        stream = pa.ipc.open_stream(mapped)
        return stream.schema, iter(stream)
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))


def _sliced(group: int, first: int, columns: Iterable[Any], done: Done) -> Iterator[Part]:
    """Parts of as many rows each, however the columns of a row group come."""
    held: list[str | Lacking] = []
    number = 0
    for column in columns:
        for begin in range(0, len(column), ROWS):
            held += [Lacking("null") if text is None else text for text in column.slice(begin, ROWS).to_pylist()]
            while len(held) >= ROWS:
                yield from _unless_done(Part((group, number), first + number * ROWS, held[:ROWS]), done)
                held, number = held[ROWS:], number + 1
    if held:
        yield from _unless_done(Part((group, number), first + number * ROWS, held), done)


def _unless_done(part: Part, done: Done) -> Iterator[Part]:
    if not done(part.place):
        yield part


def _lines(source: Source, done: Done) -> Iterator[Part]:
    with source.path.open("rb") as file:
        for number in count():
            if not (lines := list(islice(file, ROWS))):
                return
            if not done((0, number)):
                yield Part((0, number), number * ROWS, [_line(line) for line in lines])


def _line(raw: bytes) -> str | Lacking:
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        return Lacking(f"not UTF-8 (byte {error.start + 1})")


def _json_lines(source: Source, done: Done) -> Iterator[Part]:
    for part in _lines(source, done):
        yield part._replace(rows=[_from_json(row, source.column) for row in part.rows])


def _from_json(row: str | Lacking, column: str) -> str | Lacking:
    if isinstance(row, Lacking):
        return row
    try:
        value = json.loads(row)
    except (ValueError, RecursionError) as error:
        return Lacking(f"no JSON ({error})"[:200])
    text = value.get(column) if isinstance(value, dict) else value
    return text if isinstance(text, str) else Lacking(f"no string under {column!r}")


PARQUET, ARROW = ".parquet", (".arrow", ".feather", ".ipc")
KINDS: dict[str, Callable[[Source, Done], Iterator[Part]]] = {
    PARQUET: _parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".txt": _lines,
    **dict.fromkeys(ARROW, _arrow),
}
