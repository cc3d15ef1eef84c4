"""Vectors, as OpenAI's clients ask for them."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from pydantic import Field

from headrace.ir import Task
from headrace.runtime.engine.engine import Array
from headrace.runtime.serve.endpoint import Body, Note, Route
from headrace.runtime.serve.job import Job, Reading
from headrace.runtime.serve.routes.inputs import Model, PromptName, TextsOrIds, Truncate, listed_ids
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.tasks.embed import finished, require_dimensions
from headrace.runtime.text.prompts import named_prompt


class Embeddings(Body):
    """Texts or token ids to vectors."""

    input: TextsOrIds
    model: Model = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    normalize: bool | None = Field(None, description="To unit length; else as the model's folder says.")
    truncate: Truncate = False
    prompt_name: PromptName = None


async def embedded(
    served: Served,
    texts: list[Any],
    *,
    ids: bool = False,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    truncate: bool = False,
) -> tuple[Array, Job]:
    """Vectors [n, d] of texts or of lists of ids, as `CompiledModel.embed` gives them."""
    require_dimensions(dimensions, served.width)
    reading = Reading(prompt=prompt, truncate=truncate, ids=ids)
    if ids:
        served.limits.require([""] * len(texts))
        job = await served.intake(Task.EMBED).answer(texts, reading)
    else:
        job = await served.read(Task.EMBED, texts, reading)
    rows = job.rows if isinstance(job.rows, np.ndarray) else np.stack(job.rows)
    return finished(served.program, rows, normalize, dimensions), job


async def embeddings(models: Models, asked: Embeddings, note: Note) -> dict[str, Any]:
    """A vector for each input, in order."""
    served = models.find(asked.model, Task.EMBED)
    texts, ids = listed_ids(asked.input)
    prompt = named_prompt(served.program, asked.prompt_name)
    vectors, job = await embedded(
        served, texts, ids=ids, normalize=asked.normalize, dimensions=asked.dimensions, prompt=prompt,
        truncate=asked.truncate,
    )  # fmt: skip
    tokens = job.tokens
    note |= {"model": served.name, "task": Task.EMBED, "texts": len(texts), "tokens": tokens}
    written = _base64 if asked.encoding_format == "base64" else np.ascontiguousarray
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": written(vector)}
            for place, vector in enumerate(vectors)
        ],
        "model": served.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


async def models_list(models: Models, asked: None, note: Note) -> dict[str, Any]:
    """All models."""
    return {"object": "list", "data": [_described(one) for one in models.values()]}


async def model(models: Models, asked: str, note: Note) -> dict[str, Any]:
    """One model."""
    return _described(models.find(asked))


def _described(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "headrace",
        "tasks": list(served.model.tasks),
        "max_model_len": served.longest,
    }


ROUTES = (
    Route("/v1/embeddings", "Vectors of texts or token ids (OpenAI).", embeddings, Embeddings, tasks=(Task.EMBED,)),
    Route("/v1/models", "The models, and the tasks of each.", models_list),
    Route("/v1/models/{name:path}", "One model.", model),
)
