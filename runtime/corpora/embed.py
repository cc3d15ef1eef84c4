"""The job: every text of some files to a vector, or to the reason why it has none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, InputError, NonFiniteError, OutOfMemoryError
from headrace.ir import Task
from headrace.ir.serialize import encode
from headrace.runtime.artifact.manifest import read_manifest
from headrace.runtime.corpora.output import Output
from headrace.runtime.corpora.sources import ROWS, Lacking, Part, Source, find_sources
from headrace.runtime.model import CompiledModel
from headrace.runtime.progress import bar
from headrace.runtime.tasks.embed import finished, require_dimensions
from headrace.runtime.tasks.interface import Call
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import made_ahead
from headrace.runtime.text.prompts import one_prompt
from headrace.tasks import answering

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Embedded:
    """What a run did.

    Attributes:
        rows: that it embedded.
        failed: those of them that have a reason in place of a vector.
        parts: that it wrote.
        found: parts that an earlier run had written.
    """

    rows: int = 0
    failed: int = 0
    parts: int = 0
    found: int = 0


class Read(NamedTuple):
    """The texts of a part as tokens, by their places; and why others are none."""

    encoded: dict[int, Encoded]
    errors: dict[int, str]


def embed_files(
    model: CompiledModel,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    column: str = "text",
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncate: bool | None = None,
    progress: bool | None = None,
) -> Embedded:
    """Embed every text of some files into a folder of Parquet files; run anew, it goes on where it was ended.

    A row of the output has `file` and `row` (from 0), `embedding`, a list of float32 of fixed size, and `error`, which
    says why there is none. A part is 4,096 rows at most, of one row group: a file that is there whole or not at all.

    Args:
        inputs: Parquet, Arrow, JSON lines or text files (a line a text), or folders of such.
        column: of tables and JSON objects, the one that holds the texts.
        truncate: cut longer texts, or give each of them an error; None follows the model's folder.

    Raises:
        InputError: a file that cannot be read, or that changed since it was embedded here; or a folder that holds
            vectors of another model or of other options.
        TaskNotEnabledError: the model does not embed.
        HeadraceError: the disk is full; what is written stays.
    """
    call = model.call(Task.EMBED)
    require_dimensions(dimensions, answering(model.program, Task.EMBED).width)
    before = one_prompt(model.program, prompt, prompt_name)
    cuts = model.program.facts.text.truncates if truncate is None else truncate
    sources = find_sources(inputs, column)
    options = {"column": column, "normalize": normalize, "dimensions": dimensions, "prompt": before, "truncate": cuts}
    output = Output(Path(out), {"model": digest_of(model), "options": options, "rows": ROWS})

    def read(item: tuple[Source, Part]) -> Read:
        return read_rows(call, item[1].rows, before, cuts)

    done = Embedded()
    with closing(output), bar("Embedding rows", shown=progress) as shown:
        for (source, part), found in made_ahead(_left(sources, output, done), read):
            vectors, errors = vectors_of(call, found, len(part.rows), normalize, dimensions)
            output.write(source, part, vectors, errors)
            done.rows, done.parts = done.rows + len(errors), done.parts + 1
            done.failed += sum(error is not None for error in errors)
            shown.say(f"Embedding {source.path.name}: {done.rows} rows, {done.failed} without a vector")
    return done


def digest_of(model: CompiledModel) -> str:
    """Of what decides a model's vectors: its weights, its facts and its tokenizer; of one that was read back, its own.

    Raises:
        InputError: the model has no weights of its own to tell it by, and no folder.
    """
    program = model.program
    if program.exported is None:
        if model.read_from is None:
            raise InputError("The model holds no graph and was read from no folder, so nothing tells it from others.")
        return str(read_manifest(Path(model.read_from[0]))["digest"])
    found = hashlib.sha256(json.dumps([encode(program.facts), encode(program.signature), program.dtype]).encode())
    for name, weight in sorted(program.exported.state_dict.items()):
        found.update(name.encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(_byte()).numpy().data)
    if (library := getattr(model.tokenizer, "backend_tokenizer", None)) is not None:
        found.update(library.to_str().encode())
    return found.hexdigest()


def _byte() -> Any:
    import torch

    return torch.uint8


def _left(sources: Iterable[Source], output: Output, done: Embedded) -> Iterator[tuple[Source, Part]]:
    """The parts that are not written."""
    for source in sources:
        output.require_unchanged(source)

        def written(place: tuple[int, int], source: Source = source) -> bool:
            return output.name(source, place) in output.done

        done.found += sum(name.startswith(source.key) for name in output.done)
        yield from ((source, part) for part in source.parts(written))


def read_rows(call: Call, rows: Sequence[str | Lacking], prompt: str | None, cuts: bool) -> Read:
    """Rows as tokens; where one cannot be read, why."""
    texts = {place: row for place, row in enumerate(rows) if isinstance(row, str)}
    errors = {place: row.reason for place, row in enumerate(rows) if isinstance(row, Lacking)}

    def read(some: list[str]) -> list[Encoded]:
        return call.texts().encode(some, truncate=cuts, prompt=prompt)

    found = _each(list(texts.values()), read, (InputError,))
    for place, one in zip(list(texts), found, strict=True):
        if isinstance(one, HeadraceError):
            errors[place] = str(one).replace("Text 0 ", "The text ", 1)  # it was read alone
            del texts[place]
    sound = [one for one in found if not isinstance(one, HeadraceError)]
    return Read(dict(zip(texts, sound, strict=True)), errors)


def vectors_of(
    call: Call, read: Read, count: int, normalize: bool | None, dimensions: int | None
) -> tuple[NDArray[np.float32], list[str | None]]:
    """The vectors of rows that are read [count, d], zeros where there is an error."""
    width = dimensions or answering(call.program, Task.EMBED).width
    vectors, errors = np.zeros((count, width), np.float32), [read.errors.get(place) for place in range(count)]
    found = _each(list(read.encoded.values()), call.encoded_rows, (NonFiniteError, OutOfMemoryError))
    for place, row in zip(read.encoded, found, strict=True):
        if isinstance(row, HeadraceError):
            errors[place] = str(row)
        else:
            vectors[place] = finished(call.program, row[None], normalize, dimensions)[0]
    return vectors, errors


def _each(
    items: list[T], work: Callable[[list[T]], list[U]], of_one: tuple[type[HeadraceError], ...]
) -> list[U | HeadraceError]:
    """The work on all items together; where one of them is the cause of an error, on ever fewer, and its error."""
    if not items:
        return []
    try:
        return [*work(items)]
    except of_one as error:
        if len(items) == 1:
            return [error]
        half = len(items) // 2
        return _each(items[:half], work, of_one) + _each(items[half:], work, of_one)
