"""What comes back of generation."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from headrace.runtime.generate.stopping import FinishReason


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model itself found a token, before temperature, penalties and all else that options do.

    Attributes:
        token_id: the token.
        logprob: the logarithm of its probability.
        top: the likeliest tokens in its place and theirs, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, repr=False)
class Generation:
    """One answer to a prompt.

    Attributes:
        text: the answer, without what ended it; empty where the model has no tokenizer.
        token_ids: all of its tokens, with the one that ended it.
        finish_reason: "stop" at an end token, a stop string or where its grammar ends, "length" at the most new tokens.
        prompt_tokens: how many tokens the prompt has.
        logprobs: one a token, None where they were not asked for.
        index: which of the `n` answers to the prompt it is.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0

    def __repr__(self) -> str:
        """The text, and the rest in numbers: hundreds of ids say nothing to a reader."""
        known = "" if self.logprobs is None else f", logprobs of {len(self.logprobs)}"
        nth = f", index={self.index}" * bool(self.index)
        return (
            f"Generation({_SHORT.repr(self.text)}, {len(self.token_ids)} tokens, {str(self.finish_reason)!r}, "
            f"prompt_tokens={self.prompt_tokens}{known}{nth})"
        )


_SHORT = reprlib.Repr()
_SHORT.maxstring = 200
