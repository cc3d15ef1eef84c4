"""Texts that go on, as OpenAI's clients of completions ask for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from pydantic import Field

from headrace.errors import InputError
from headrace.ir import Task
from headrace.runtime.serve.endpoint import Events, Note, Route
from headrace.runtime.serve.routes.generating import Generating, completion_logprobs, ended, heading, usage
from headrace.runtime.serve.routes.inputs import TextsOrIds, listed_ids
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.serve.stepper import Part, Stream

# As OpenAI's.
NEW_TOKENS = 16


class Completions(Generating):
    """Prompts to continuations."""

    prompt: TextsOrIds
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None

    def options(self) -> dict[str, Any]:
        """As `CompiledModel.generate` takes them.

        Raises:
            InputError: what is not served.
        """
        if self.echo or self.suffix or self.best_of not in (None, self.n or 1):
            raise InputError("echo, suffix and best_of are not served. Leave them out.")
        found = super().options()
        return found | {"max_new_tokens": self.max_tokens or NEW_TOKENS, "logprobs": self.logprobs}


async def completions(models: Models, asked: Completions, note: Note) -> Any:
    """What each prompt goes on with."""
    served = models.find(asked.model, Task.GENERATE)
    stepper = served.stepper  # raises where the model does not generate
    prompts, ids = listed_ids(asked.prompt)
    served.limits.require([""] * len(prompts) if ids else prompts)
    served.limits.require_answers(len(prompts) * (asked.n or 1))
    note |= {"model": served.name, "task": Task.GENERATE, "texts": len(prompts), "stream": asked.stream}
    answers = stepper.answers(prompts, None, asked.options(), asked.stream)
    head = heading("text_completion", served.name, "cmpl")
    if asked.stream:
        return Events(_streamed(answers, served, asked, head, note))
    async with answers as stream:
        parts = [part async for part in stream.read()]
        cost = usage(stream, sum(len(part.generation.token_ids) for part in parts if part.generation))
    note["tokens"] = cost["total_tokens"]
    choices = [_choice(part, served, asked) for part in sorted(parts, key=lambda part: (part.prompt, part.index))]
    return head | {"choices": choices, "usage": cost}


async def _streamed(
    answers: Any, served: Served, asked: Completions, head: dict[str, Any], note: Note
) -> AsyncGenerator[dict[str, Any], None]:
    costs = asked.stream_options is not None and asked.stream_options.include_usage
    more = {"usage": None} if costs else {}
    made, offsets = 0, dict[tuple[int, int], int]()
    stream: Stream
    async with answers as stream:
        async for part in stream.read():
            key = (part.prompt, part.index)
            yield head | {"choices": [_choice(part, served, asked, offsets.get(key, 0))]} | more
            offsets[key] = offsets.get(key, 0) + len(part.text)
            made += 0 if part.generation is None else len(part.generation.token_ids)
        cost = usage(stream, made)
    note["tokens"] = cost["total_tokens"]
    if costs:
        yield head | {"choices": [], "usage": cost}


def _choice(part: Part, served: Served, asked: Completions, offset: int = 0) -> dict[str, Any]:
    text = part.text if asked.stream or part.generation is None else part.generation.text
    known = None
    if asked.logprobs is not None:
        known = completion_logprobs(part.logprobs, served.model.tokenizer, offset)
    return {
        "index": part.prompt * (asked.n or 1) + part.index,
        "text": text,
        "logprobs": known,
        "finish_reason": ended(part.generation),
    }


ROUTES = (
    Route("/v1/completions", "What prompts go on with (OpenAI).", completions, Completions, tasks=(Task.GENERATE,)),
)
