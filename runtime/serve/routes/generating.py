"""What completions and chats share: the options of generation, and tokens with their probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

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
        """As `CompiledModel.generate` takes them."""
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
            "json_schema": self.guided_json,
        }


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
