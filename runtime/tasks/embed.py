"""embed: one vector a text."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.ir import Program
from headrace.runtime.tasks.answers.precision import quantised, read_precision
from headrace.runtime.tasks.answers.records import shortest
from headrace.runtime.tasks.answers.vectors import normalise
from headrace.runtime.tasks.interface import Answering, Call, Command, Each, Prompt, PromptName
from headrace.runtime.text.prompts import one_prompt
from headrace.runtime.text.validate import counts, require_choice


def embed(
    call: Call,
    texts: Any,
    normalize: Annotated[bool | None, "To unit length."] = None,
    dimensions: Annotated[int | None, "Keep the first so many."] = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    precision: str | None = None,
    ranges: Any = None,
) -> NDArray[Any]:
    """See `CompiledModel.embed`."""
    call.lane()
    width = call.width
    require_choice("normalize", normalize)
    require_dimensions(dimensions, width)
    kind, bounds = read_precision(precision, ranges, dimensions or width)
    listed = call.drawn(texts)
    vectors = np.empty((len(listed), dimensions or width), np.float32)
    for places, rows in call.answered(listed, prompt=one_prompt(call.program, prompt, prompt_name)):
        vectors[places] = finished(call.program, np.asarray(rows), normalize, dimensions)
    return quantised(vectors, kind, bounds)


def each(call: Call) -> Each:
    """A text's vector as the folder makes it; joined to [n, d]."""
    width = call.width

    def join(rows: list[Any]) -> NDArray[np.float32]:
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    return Each(lambda row, _: finished(call.program, row[None], None, None)[0].copy(), join)


def require_dimensions(dimensions: int | None, width: int) -> None:
    """Refuse what is no number of the first of a vector's numbers.

    Raises:
        InputError: it is none.
    """
    if dimensions is not None and not (counts(dimensions) and dimensions <= width):
        met = f"dimensions is {dimensions!r}; the model's vectors have {width}"
        raise InputError(f"{met}: choose from 1 to {width}.")


def finished(
    program: Program, rows: NDArray[np.float32], normalize: bool | None, dimensions: int | None
) -> NDArray[np.float32]:
    """The program's vectors [n, width] as they are answered: cut, and at unit length where that is asked for."""
    pooling, kept = program.facts.pooling, rows[:, :dimensions]
    to_unit = bool(pooling and pooling.normalize) if normalize is None else normalize
    return normalise(kept) if to_unit else kept


def record(vector: NDArray[np.float32]) -> dict[str, Any]:
    """A vector as JSON."""
    return {"embedding": [shortest(value) for value in vector]}


TASK = Answering(embed, Command('One vector a text: {"embedding": [...]}.', record), each)
