"""The routes of text-embeddings-inference."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from headrace import __version__
from headrace.errors import InputError
from headrace.ir import Task
from headrace.runtime.engine.engine import Array
from headrace.runtime.serve.endpoint import Body, Note, Route
from headrace.runtime.serve.job import Job, Reading
from headrace.runtime.serve.refusals import Dialect
from headrace.runtime.serve.routes.embeddings import embedded
from headrace.runtime.serve.routes.inputs import Model, Predicted, PromptName, Texts, Truncate, listed
from headrace.runtime.serve.routes.labels import classified
from headrace.runtime.serve.routes.ranking import rank
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.tasks.classify import Classification
from headrace.runtime.tasks.sparse_embed import SparseVector, each
from headrace.runtime.text.prompts import named_prompt

# The side that truncation takes tokens from is the tokenizer's own.
Side = Annotated[Literal["left", "right", "Left", "Right"] | None, Field(description="As the tokenizer cuts.")]


class Inputs(Body):
    """Texts."""

    inputs: Texts
    model: Model = None
    truncate: Truncate = False
    truncation_direction: Side = None
    prompt_name: PromptName = None


class Embed(Inputs):
    """Texts to vectors."""

    normalize: bool = True
    dimensions: int | None = None


class Predict(Body):
    """Texts or pairs to labels."""

    inputs: Predicted
    model: Model = None
    truncate: Truncate = False
    truncation_direction: Side = None
    raw_scores: bool = False


class Rerank(Body):
    """A query and the texts to rank for it."""

    query: str
    texts: Annotated[list[str], Field(min_length=1)]
    model: Model = None
    truncate: Truncate = False
    truncation_direction: Side = None
    raw_scores: bool = False
    return_text: bool = False


class Tokenize(Body):
    """Texts to tokens."""

    inputs: Texts
    model: Model = None
    add_special_tokens: bool = True
    prompt_name: PromptName = None


async def embed(models: Models, asked: Embed, note: Note) -> list[Array]:
    """A vector for each text."""
    served, texts = _found(models, asked, Task.EMBED), listed(asked.inputs)
    vectors, job = await embedded(
        served, texts, normalize=asked.normalize, dimensions=asked.dimensions, prompt=_prompt(served, asked),
        truncate=asked.truncate,
    )  # fmt: skip
    note |= {"model": served.name, "task": Task.EMBED, "texts": len(texts), "tokens": job.tokens}
    return list(np.ascontiguousarray(vectors))


async def embed_all(models: Models, asked: Inputs, note: Note) -> list[Any]:
    """A vector for each token of each text."""
    _, job = await _read(models, asked, Task.TOKEN_EMBED, note)
    return [np.ascontiguousarray(row) for row in job.rows]


async def embed_sparse(models: Models, asked: Inputs, note: Note) -> list[Any]:
    """The numbers of each text's vector that are not zero."""
    served, job = await _read(models, asked, Task.SPARSE_EMBED, note)
    made = each(served.model.call(Task.SPARSE_EMBED))
    return [_sparse(made.answer(row, one)) for row, one in zip(job.rows, job.encoded, strict=True)]


def _sparse(vector: SparseVector) -> list[dict[str, Any]]:
    return [
        {"index": index, "value": weight} for index, weight in zip(vector.indices.tolist(), vector.weights, strict=True)
    ]


async def _read(models: Models, asked: Inputs, task: Task, note: Note) -> tuple[Served, Job]:
    served, texts = _found(models, asked, task), listed(asked.inputs)
    job = await served.read(task, texts, Reading(prompt=_prompt(served, asked), truncate=asked.truncate))
    note |= {"model": served.name, "task": task, "texts": len(texts), "tokens": job.tokens}
    return served, job


async def predict(models: Models, asked: Predict, note: Note) -> list[Any]:
    """Every label of each text or pair, the likeliest first."""
    served, given = _found(models, asked, Task.CLASSIFY), asked.inputs
    many = isinstance(given, list) and isinstance(given[0], list)
    rows = given if many else [listed(given)]
    texts = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    found, tokens = await classified(served, Task.CLASSIFY, texts, truncate=asked.truncate, raw=asked.raw_scores)
    note |= {"model": served.name, "task": Task.CLASSIFY, "texts": len(texts), "tokens": tokens}
    predicted = [_predictions(one) for one in found]
    return predicted if many else predicted[0]


def _predictions(found: Classification) -> list[dict[str, Any]]:
    best = sorted(found.scores.items(), key=lambda pair: -pair[1])
    return [{"score": score, "label": label} for label, score in best]


async def rerank(models: Models, asked: Rerank, note: Note) -> list[dict[str, Any]]:
    """The texts by their places, best first."""
    served = _found(models, asked, Task.SCORE, Task.EMBED)
    found, tokens = await rank(served, asked.query, asked.texts, truncate=asked.truncate, raw=asked.raw_scores)
    note |= {"model": served.name, "task": "rank", "texts": len(asked.texts), "tokens": tokens}
    return [
        {"index": one.index, "score": one.score} | ({"text": one.document} if asked.return_text else {})
        for one in found
    ]


async def tokenize(models: Models, asked: Tokenize, note: Note) -> list[Any]:
    """The tokens of each text, and where they stand in it."""
    served, texts = models.find(asked.model, *Task), listed(asked.inputs)
    served.limits.require(texts)
    tokenizer = served.model.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        raise InputError("The model has no fast tokenizer, which alone says where tokens stand.")
    prompt = _prompt(served, asked)
    before = dict(served.program.facts.text.prompts).get(prompt or "", "")

    def read() -> list[Any]:
        return [_tokens(tokenizer, before + text, asked.add_special_tokens) for text in texts]

    note |= {"model": served.name, "task": "tokenize", "texts": len(texts)}
    return await asyncio.to_thread(read)


def _tokens(tokenizer: Any, text: str, special: bool) -> list[dict[str, Any]]:
    library = tokenizer.backend_tokenizer
    library.no_truncation()  # a tokenizer's file may bring settings of its own
    library.no_padding()
    read = library.encode(text, add_special_tokens=special)
    columns = zip(read.ids, read.tokens, read.special_tokens_mask, read.offsets, strict=True)
    return [
        {"id": id_, "text": token, "special": True, "start": None, "stop": None}
        if added
        else {"id": id_, "text": text[start:stop], "special": False, "start": start, "stop": stop}
        for id_, token, added, (start, stop) in columns
    ]


async def info(models: Models, asked: None, note: Note) -> dict[str, Any]:
    """The first model, as clients of one model ask for it, and the names of all."""
    served, limits = next(iter(models.values())), models.limits
    return {
        "model_id": served.name,
        "model_sha": None,
        "model_dtype": served.model.dtype,
        "model_type": _type(served),
        "max_concurrent_requests": limits.queue,
        "max_input_length": served.longest,
        "max_client_batch_size": limits.texts,
        "max_batch_tokens": served.model.engine.backend.step_tokens,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
        "models": {one.name: list(one.model.tasks) for one in models.values()},
    }


def _type(served: Served) -> dict[str, Any]:
    """What clients tell embedders, rerankers and classifiers by."""
    facts, tasks = served.program.facts, served.model.tasks
    if facts.labels is not None and (Task.SCORE in tasks or Task.CLASSIFY in tasks):
        names = facts.labels.names
        kind = "reranker" if Task.SCORE in tasks else "classifier"
        return {
            kind: {
                "id2label": {str(place): name for place, name in enumerate(names)},
                "label2id": {name: place for place, name in enumerate(names)},
            }
        }
    pooling = ",".join(facts.pooling.kinds) if facts.pooling is not None else ""
    return {"embedding": {"pooling": "splade" if Task.SPARSE_EMBED in tasks else pooling or "own"}}


def _found(models: Models, asked: Any, *tasks: Task) -> Served:
    served = models.find(asked.model, *tasks)
    own = getattr(served.model.tokenizer, "truncation_side", "right")
    side = asked.truncation_direction
    if asked.truncate and side is not None and side.lower() != own:
        raise InputError(f"truncation_direction is {side}; the model's tokenizer cuts on the {own}. Leave it out.")
    return served


def _prompt(served: Served, asked: Any) -> str | None:
    return named_prompt(served.program, asked.prompt_name)


def _route(path: str, says: str, handler: Any, body: type[Body] | None = None, *tasks: Task) -> Route:
    return Route(path, f"{says} (text-embeddings-inference).", handler, body, Dialect.TEI, tasks)


ROUTES = (
    _route("/embed", "Vectors of texts", embed, Embed, Task.EMBED),
    _route("/embed_all", "A vector for each token", embed_all, Inputs, Task.TOKEN_EMBED),
    _route("/embed_sparse", "Sparse vectors of texts", embed_sparse, Inputs, Task.SPARSE_EMBED),
    _route("/rerank", "Texts ranked for a query", rerank, Rerank, Task.SCORE, Task.EMBED),
    _route("/predict", "Labels of texts or pairs", predict, Predict, Task.CLASSIFY),
    _route("/tokenize", "The tokens of texts", tokenize, Tokenize),
    _route("/info", "What is served", info),
)
