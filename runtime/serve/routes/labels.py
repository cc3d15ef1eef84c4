"""Labels of texts, scores of pairs, and entities in texts."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.errors import InputError
from headrace.ir import Activation, Labels, Task
from headrace.runtime.serve.endpoint import Body, Note, Route
from headrace.runtime.serve.job import Job, Reading
from headrace.runtime.serve.routes.inputs import Model, PromptName, Texts, Truncate, listed
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.tasks.classify import Classification, classification
from headrace.runtime.tasks.token_classify import Entity, Shape, entities
from headrace.runtime.text.prompts import named_prompt


class Classify(Body):
    """Texts to labels."""

    input: Texts
    model: Model = None
    user: str | None = None
    truncate: Truncate = False
    prompt_name: PromptName = None


class Score(Body):
    """Pairs of texts to scores: one text beside each of many, or each beside its own."""

    text_1: Texts
    text_2: Texts
    model: Model = None
    user: str | None = None
    truncate: Truncate = False
    prompt_name: PromptName = None


class Entities(Body):
    """Texts to the labelled parts in them."""

    input: Texts
    model: Model = None
    user: str | None = None
    aggregation: Annotated[
        Literal["none", "simple", "first", "average", "max"], Field(description="As transformers names them.")
    ] = "simple"
    truncate: Truncate = False


async def classified(
    served: Served, task: Task, texts: list[Any], *, prompt: str | None = None, truncate: bool = False,
    raw: bool = False,
) -> tuple[list[Classification], int]:  # fmt: skip
    """The classification of each text, or of each pair, and their tokens. Both may stand in one list."""
    served.limits.require_some(texts)
    labels = labels_of(served, task, raw)
    pairs = [isinstance(one, tuple) for one in texts]
    found: dict[int, Classification] = {}
    jobs: list[tuple[list[int], Any]] = []
    for kind in sorted(set(pairs)):
        places = [place for place, pair in enumerate(pairs) if pair is kind]
        reading = Reading(pairs=kind, prompt=prompt, truncate=truncate)
        jobs.append((places, served.read(task, [texts[place] for place in places], reading)))
    done: list[Job] = await asyncio.gather(*(job for _, job in jobs))
    for (places, _), job in zip(jobs, done, strict=True):
        found |= {place: classification(row, labels) for place, row in zip(places, job.rows, strict=True)}
    return [found[place] for place in range(len(texts))], sum(job.tokens for job in done)


def labels_of(served: Served, task: Task, raw: bool = False) -> Labels:
    """The labels of a task, whose scores are the logits themselves where they are asked for raw.

    Raises:
        TaskNotEnabledError: the model does not enable it.
    """
    served.intake(task)
    labels = served.program.facts.labels
    assert labels is not None
    return replace(labels, activation=Activation.IDENTITY) if raw else labels


def envelope(served: Served, kind: str, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """A list of answers, with what they cost."""
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": served.name,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def classify(models: Models, asked: Classify, note: Note) -> dict[str, Any]:
    """The best label of each text, with every label's probability in the model's order."""
    served, texts = models.find(asked.model, Task.CLASSIFY), listed(asked.input)
    prompt = named_prompt(served.program, asked.prompt_name)
    found, tokens = await classified(served, Task.CLASSIFY, texts, prompt=prompt, truncate=asked.truncate)
    note |= {"model": served.name, "task": Task.CLASSIFY, "texts": len(texts), "tokens": tokens}
    data = [
        {
            "index": place,
            "label": one.label,
            "probs": list(one.scores.values()),
            "labels": list(one.scores),
            "num_classes": len(one.scores),
        }
        for place, one in enumerate(found)
    ]
    return envelope(served, "classify", data, tokens)


async def score(models: Models, asked: Score, note: Note) -> dict[str, Any]:
    """How well the texts of each pair fit."""
    served, first, second = models.find(asked.model, Task.SCORE), listed(asked.text_1), listed(asked.text_2)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise InputError(
            f"text_1 has {len(first)} texts and text_2 {len(second)}; one text in text_1, or as many of each, are "
            "accepted."
        )
    prompt = named_prompt(served.program, asked.prompt_name)
    pairs = list(zip(first, second, strict=True))
    found, tokens = await classified(served, Task.SCORE, pairs, prompt=prompt, truncate=asked.truncate)
    note |= {"model": served.name, "task": Task.SCORE, "texts": len(pairs), "tokens": tokens}
    data = [{"index": place, "object": "score", "score": one.score} for place, one in enumerate(found)]
    return envelope(served, "score", data, tokens)


async def label_entities(models: Models, asked: Entities, note: Note) -> dict[str, Any]:
    """The labelled parts of each text: `text[start:end]`, counted in characters."""
    served, texts = models.find(asked.model, Task.TOKEN_CLASSIFY), listed(asked.input)
    labels = labels_of(served, Task.TOKEN_CLASSIFY)
    job = await served.read(Task.TOKEN_CLASSIFY, texts, Reading(truncate=asked.truncate, offsets=True))
    note |= {"model": served.name, "task": Task.TOKEN_CLASSIFY, "texts": len(texts), "tokens": job.tokens}

    def found() -> list[list[Entity]]:
        answered = zip(job.rows, texts, job.encoded, strict=True)
        return [entities([row], labels, text, one, Shape(asked.aggregation)) for row, text, one in answered]

    data = [
        {"index": place, "entities": [_entity(one) for one in parts]}
        for place, parts in enumerate(await asyncio.to_thread(found))  # the tokenizer is asked, which takes time
    ]
    return envelope(served, "entities", data, job.tokens)


def _entity(one: Entity) -> dict[str, Any]:
    return {"label": one.label, "score": one.score, "start": one.start, "end": one.end, "word": one.word}


ROUTES = (
    Route(
        "/v1/classify",
        "The best label of each text, and the probabilities of all.",
        classify,
        Classify,
        tasks=(Task.CLASSIFY,),
    ),
    Route("/v1/score", "How well two texts fit.", score, Score, tasks=(Task.SCORE,)),
    Route(
        "/v1/entities",
        "The labelled parts of each text, with offsets.",
        label_entities,
        Entities,
        tasks=(Task.TOKEN_CLASSIFY,),
    ),
)
