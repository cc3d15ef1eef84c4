"""What completions and chats share: the options of generation, and tokens with their probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.errors import InputError
from headrace.runtime.generate.generation import Generation, TokenLogprob
from headrace.runtime.serve.endpoint import Body
from headrace.runtime.serve.stepper import Stream

Penalty = Annotated[float | None, Field(ge=-2, le=2)]


class StreamOptions(Body):
    """What a stream holds besides."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Schema(Body):
    """A JSON schema, and what it is called."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class Format(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    def schema_text(self) -> dict[str, Any] | None:
        """The JSON schema that an answer keeps to.

        Raises:
            InputError: there is none where it is asked for.
        """
        if self.type == "json_schema" and self.json_schema is None:
            raise InputError('response_format is json_schema without json_schema. Give it: {"schema": {...}}.')
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class Generating(Body):
    """The options of OpenAI's, and those that vLLM's clients add. What is left out follows the model's folder."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Format | None = None
    # Those that change no answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Those of vLLM.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    guided_choice: list[str] | None = None
    guided_json: dict[str, Any] | str | None = None

    def options(self) -> dict[str, Any]:
        """As `CompiledModel.generate` takes them.

        Raises:
            InputError: what cannot be followed.
        """
        same = (
            "n temperature top_p presence_penalty frequency_penalty seed top_k min_p repetition_penalty ignore_eos "
            "skip_special_tokens"
        )
        found = {name: getattr(self, name) for name in same.split()}
        return found | {
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
            "stop": tuple(self.stop) if isinstance(self.stop, list) else self.stop,
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "logit_bias": _biases(self.logit_bias),
            "choice": None if self.guided_choice is None else tuple(self.guided_choice),
            "json_schema": self._schema(),
        }

    def _schema(self) -> dict[str, Any] | str | None:
        """The JSON schema that an answer keeps to, by either name."""
        asked = None if self.response_format is None else self.response_format.schema_text()
        if asked is not None and self.guided_json is not None:
            raise InputError(
                "response_format and guided_json both say what the answer keeps to. Leave one of them out."
            )
        return self.guided_json if asked is None else asked


def _biases(given: Mapping[str, float] | None) -> dict[int, float] | None:
    """JSON's keys are strings."""
    if given is None:
        return None
    if wrong := [key for key in given if not key.isdecimal()]:
        raise InputError(f"logit_bias has the key {wrong[0]!r:.100}; token ids are accepted.")
    return {int(key): value for key, value in given.items()}


def usage(stream: Stream, made: int) -> dict[str, int]:
    """What a request cost."""
    read = stream.prompt_tokens
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def heading(kind: str, name: str, prefix: str) -> dict[str, Any]:
    """What each answer and each of its parts begins with."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": name}


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text, by its number where there is no tokenizer."""
    return f"token_id:{token}" if tokenizer is None else str(tokenizer.decode([token]))


def chat_logprobs(known: Sequence[TokenLogprob], tokenizer: Any) -> dict[str, Any]:
    """Tokens and their likeliest alternatives, as chats have them."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(tokenizer, token)
        # A part of a character is no text, and its bytes are not known from it.
        written = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": written}

    return {
        "content": [
            one(found.token_id, found.logprob) | {"top_logprobs": [one(*other) for other in found.top]}
            for found in known
        ],
        "refusal": None,
    }


def completion_logprobs(known: Sequence[TokenLogprob], tokenizer: Any, offset: int = 0) -> dict[str, Any]:
    """The same as completions have them: in columns, with where each token begins in the text."""
    texts = [token_text(tokenizer, found.token_id) for found in known]
    return {
        "tokens": texts,
        "token_logprobs": [found.logprob for found in known],
        "top_logprobs": [{token_text(tokenizer, token): logprob for token, logprob in found.top} for found in known],
        "text_offset": [offset + sum(map(len, texts[:place])) for place in range(len(texts))],
    }


def ended(generation: Generation | None) -> str | None:
    """Why an answer ended, None while it goes on."""
    return None if generation is None else generation.finish_reason.value
