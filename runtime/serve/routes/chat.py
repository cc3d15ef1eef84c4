"""Chats that go on, as OpenAI's clients ask for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.errors import InputError
from headrace.ir import Task
from headrace.runtime.serve.endpoint import Body, Events, Note, Route
from headrace.runtime.serve.routes.generating import Generating, chat_logprobs, ended, heading, usage
from headrace.runtime.serve.served import Models, Served
from headrace.runtime.serve.stepper import Part, Stream

# What is no value for the model's own template: another template is a program of the client's, and the others say what
# becomes of the text.
RESERVED = frozenset(
    "chat_template tokenize add_generation_prompt continue_final_message padding truncation max_length return_dict "
    "return_tensors return_assistant_tokens_mask tokenizer_kwargs processor_kwargs conversation messages".split()
)


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a chat."""

    role: Annotated[str, Field(min_length=1)]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content} | ({} if self.name is None else {"name": self.name})


class Chat(Generating):
    """A chat to its next message."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """As `CompiledModel.generate` takes them.

        Raises:
            InputError: what is not served.
        """
        if self.tools or self.tool_choice not in (None, "none"):
            raise InputError("tools are not served: answers are texts. Leave tools and tool_choice out.")
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs is given without logprobs. Set that to true, or leave it out.")
        if reserved := sorted(RESERVED & set(self.chat_template_kwargs or ())):
            raise InputError(f"chat_template_kwargs hold {', '.join(reserved)}, which the server sets. Leave them out.")
        found = super().options()
        return found | {
            "max_new_tokens": self.max_completion_tokens or self.max_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }


async def chat(models: Models, asked: Chat, note: Note) -> Any:
    """The next message of a chat."""
    served = models.find(asked.model, Task.GENERATE)
    stepper = served.stepper  # raises where the model does not generate
    messages = [one.plain() for one in asked.messages]
    served.limits.require([one["content"] for one in messages])
    served.limits.require_answers(asked.n or 1)
    note |= {"model": served.name, "task": Task.GENERATE, "texts": 1, "stream": asked.stream}
    answers = stepper.answers([messages], asked.chat_template_kwargs, asked.options(), asked.stream)
    if asked.stream:
        return Events(_streamed(answers, served, asked, note))
    async with answers as stream:
        parts = [part async for part in stream.read()]
        cost = usage(stream, sum(len(part.generation.token_ids) for part in parts if part.generation))
    note["tokens"] = cost["total_tokens"]
    choices = [_choice(part, served, asked) for part in sorted(parts, key=lambda part: part.index)]
    return heading("chat.completion", served.name, "chatcmpl") | {"choices": choices, "usage": cost}


def _choice(part: Part, served: Served, asked: Chat) -> dict[str, Any]:
    assert part.generation is not None
    return {
        "index": part.index,
        "message": {"role": "assistant", "content": part.generation.text, "refusal": None},
        "logprobs": _known(part, served, asked),
        "finish_reason": ended(part.generation),
    }


def _known(part: Part, served: Served, asked: Chat) -> dict[str, Any] | None:
    return chat_logprobs(part.logprobs, served.model.tokenizer) if asked.logprobs else None


async def _streamed(answers: Any, served: Served, asked: Chat, note: Note) -> AsyncGenerator[dict[str, Any], None]:
    head = heading("chat.completion.chunk", served.name, "chatcmpl")
    costs = asked.stream_options is not None and asked.stream_options.include_usage
    more = {"usage": None} if costs else {}
    made = 0

    def chunk(index: int, delta: dict[str, str], known: Any = None, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": known, "finish_reason": reason}
        return head | {"choices": [choice]} | more

    stream: Stream
    async with answers as stream:
        for begun in stream.begun:
            yield chunk(begun.answer.index, {"role": "assistant", "content": ""})
        async for part in stream.read():
            if part.text or part.logprobs:
                yield chunk(part.index, {"content": part.text}, _known(part, served, asked))
            if part.generation is not None:
                yield chunk(part.index, {}, reason=ended(part.generation))
                made += len(part.generation.token_ids)
        cost = usage(stream, made)
    note["tokens"] = cost["total_tokens"]
    if costs:
        yield head | {"choices": [], "usage": cost}


ROUTES = (Route("/v1/chat/completions", "The next message of a chat (OpenAI).", chat, Chat, tasks=(Task.GENERATE,)),)
