"""Documents ranked for a query, as Cohere's and Jina's clients ask for it."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from headrace.ir import Task
from headrace.runtime.serve.endpoint import Body, Note, Route
from headrace.runtime.serve.routes.embeddings import embedded
from headrace.runtime.serve.routes.inputs import Model, Truncate
from headrace.runtime.serve.routes.labels import classified
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.tasks.score import Ranked, ranked
from headrace.runtime.text.prompts import side_prompt


class Document(Body):
    """A document as an object."""

    text: str


class Rerank(Body):
    """A query and the documents to rank for it."""

    query: str
    documents: Annotated[list[str | Document], Field(min_length=1)]
    model: Model = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    truncate: Truncate = False


class Ranking(NamedTuple):
    """Documents, best first, and the tokens of all that was read."""

    found: list[Ranked]
    tokens: int


async def rank(
    served: Served, query: str, documents: list[str], *, top: int | None = None, truncate: bool = False,
    raw: bool = False,
) -> Ranking:  # fmt: skip
    """As `CompiledModel.rank`: by score, or of a model that only embeds, by the similarity to the query."""
    tasks = served.model.tasks
    if Task.SCORE in tasks or Task.EMBED not in tasks:
        pairs = [(query, document) for document in documents]
        found, tokens = await classified(served, Task.SCORE, pairs, truncate=truncate, raw=raw)
        scores = [one.score for one in found]
    else:
        sides = {side: side_prompt(served.program, side) for side in ("query", "document")}
        asked, first = await embedded(served, [query], prompt=sides["query"], truncate=truncate)
        rows, second = await embedded(served, documents, prompt=sides["document"], truncate=truncate)
        scores = served.model.similarity(asked, rows)[0].tolist()
        tokens = first.tokens + second.tokens
    return Ranking(ranked(scores, documents, top), tokens)


async def rerank(models: Models, asked: Rerank, note: Note) -> dict[str, Any]:
    """The documents, best first."""
    served = models.find(asked.model, Task.SCORE, Task.EMBED)
    documents = [one if isinstance(one, str) else one.text for one in asked.documents]
    found, tokens = await rank(served, asked.query, documents, top=asked.top_n, truncate=asked.truncate)
    note |= {"model": served.name, "task": "rank", "texts": len(documents), "tokens": tokens}
    results = [
        {"index": one.index, "relevance_score": one.score}
        | ({"document": {"text": one.document}} if asked.return_documents else {})
        for one in found
    ]
    return {
        "id": str(uuid.uuid4()),
        "model": served.name,
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


ROUTES = tuple(
    Route(path, "Documents, best first (Cohere, Jina).", rerank, Rerank, tasks=(Task.SCORE, Task.EMBED))
    for path in ("/v1/rerank", "/v2/rerank")
)
