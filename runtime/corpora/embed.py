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
    digest: str | None = None,
    progress: bool | None = None,
) -> Embedded:
    """Embed every text of some files into a folder of Parquet files; run anew, it goes on where it was ended.

    A row of the output has `file` and `row` (from 0), `embedding`, a list of float32 of fixed size, and `error`, which
    says why there is none. A part is 4,096 rows at most, of one row group: a file that is there whole or not at all.

    Args:
        inputs: Parquet, Arrow, JSON lines or text files (a line a text), or folders of such.
        column: of tables and JSON objects, the one that holds the texts.
        truncate: cut longer texts, or give each of them an error; None follows the model's folder.
        digest: of a model that was read back, what tells it from others: that of its manifest.

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
    output = Output(Path(out), {"model": digest or digest_of(model), "options": options, "rows": ROWS})

    def read(item: tuple[Source, Part]) -> Read:
        return _read(call, item[1], before, cuts)

    done = Embedded()
    with closing(output), bar("Embedding rows", shown=progress) as shown:
        for (source, part), found in made_ahead(_left(sources, output, done), read):
            vectors, errors = _vectors(call, found, len(part.rows), normalize, dimensions)
            output.write(source, part, vectors, errors)
            done.rows, done.parts = done.rows + len(errors), done.parts + 1
            done.failed += sum(error is not None for error in errors)
            shown.say(f"Embedding {source.path.name}: {done.rows} rows, {done.failed} without a vector")
    return done


def digest_of(model: CompiledModel) -> str:
    """Of what decides a model's vectors: its weights, its facts and its tokenizer.

    Raises:
        InputError: the model was read back, and has no weights of its own to tell it by.
    """
    program = model.program
    if program.exported is None:
        raise InputError("A model that was read back is told by its manifest: pass the digest that stands there.")
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


def _read(call: Call, part: Part, prompt: str | None, cuts: bool) -> Read:
    texts = {place: row for place, row in enumerate(part.rows) if isinstance(row, str)}
    errors = {place: row.reason for place, row in enumerate(part.rows) if isinstance(row, Lacking)}

    def read(some: list[str]) -> list[Encoded]:
        return call.texts().encode(some, truncate=cuts, prompt=prompt)

    found = _each(list(texts.values()), read, (InputError,))
    for place, one in zip(list(texts), found, strict=True):
        if isinstance(one, HeadraceError):
            errors[place] = str(one)
            del texts[place]
    sound = [one for one in found if not isinstance(one, HeadraceError)]
    return Read(dict(zip(texts, sound, strict=True)), errors)


def _vectors(
    call: Call, read: Read, count: int, normalize: bool | None, dimensions: int | None
) -> tuple[NDArray[np.float32], list[str | None]]:
    """The vectors of a part [count, d], zeros where there is an error."""
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
