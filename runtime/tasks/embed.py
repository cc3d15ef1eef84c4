"""embed: one vector a text."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.runtime.tasks.interface import Answering, Call, Command, Each, Prompt, PromptName
from headrace.runtime.tasks.precision import quantised, read_precision
from headrace.runtime.tasks.records import shortest
from headrace.runtime.tasks.vectors import normalise
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
    if dimensions is not None and not (counts(dimensions) and dimensions <= width):
        met = f"dimensions is {dimensions!r}; the model's vectors have {width}"
        raise InputError(f"{met}: choose from 1 to {width}.")
    kind, bounds = read_precision(precision, ranges, dimensions or width)
    to_unit = normalises(call) if normalize is None else normalize
    listed = call.drawn(texts)
    vectors = np.empty((len(listed), dimensions or width), np.float32)
    for places, rows in call.answered(listed, prompt=one_prompt(call.program, prompt, prompt_name)):
        kept = np.asarray(rows)[:, :dimensions]
        vectors[list(places)] = normalise(kept) if to_unit else kept
    return quantised(vectors, kind, bounds)


def normalises(call: Call) -> bool:
    """Whether the folder's vectors are at unit length."""
    pooling = call.program.facts.pooling
    return bool(pooling and pooling.normalize)


def each(call: Call) -> Each:
    """A text's vector as the folder makes it; joined to [n, d]."""
    to_unit, width = normalises(call), call.width

    def join(rows: list[Any]) -> NDArray[np.float32]:
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    return Each(lambda row, _: normalise(row) if to_unit else row.copy(), join)


def record(vector: NDArray[np.float32]) -> dict[str, Any]:
    """A vector as JSON."""
    return {"embedding": [shortest(value) for value in vector]}


TASK = Answering(embed, Command('One vector a text: {"embedding": [...]}.', record), each)
