"""fill_mask: the likeliest tokens at the mask tokens of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from headrace.errors import InputError
from headrace.runtime.places import Places
from headrace.runtime.tasks.answers.mapping import Record
from headrace.runtime.tasks.interface import Answering, Call
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.validate import counts

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Fill(Record):
    """One token for one mask: its text, its id and its probability."""

    token: str
    id: int
    score: float


def fill_mask(call: Call, texts: Any, top: Annotated[int, "How many tokens a mask."] = 5) -> list[list[list[Fill]]]:
    """See `CompiledModel.fill_mask`."""
    if not counts(top):
        raise InputError(f"top is {top!r}; an int of 1 and above is accepted.")
    listed = call.drawn(texts)
    call.lane()
    reader = call.texts()
    encoded = reader.encode(listed, truncate=call.truncate, places=Places(call.first))
    numbered = enumerate(zip(call.encoded_rows(encoded), encoded, strict=True), call.first)
    return [fills(row, one, call.tokenizer, reader.decode, top, number) for number, (row, one) in numbered]


def fills(
    logits: np.ndarray[Any, Any], encoded: Encoded, tokenizer: Any, decode: Decode, top: int, number: int
) -> list[list[Fill]]:  # fmt: skip
    """For each mask token of the text, in order, the `top` likeliest tokens.

    Args:
        logits: [t, vocabulary].
        decode: spells ids of the tokenizer as text.
        number: the text's, in messages.

    Raises:
        InputError: the text holds no mask token, or the tokenizer has none.
    """
    mask = tokenizer.mask_token_id
    if mask is None:
        raise InputError("The tokenizer has no mask token, so no text can hold one.")
    places = np.flatnonzero(encoded.ids == mask)
    if not len(places):
        raise InputError(
            f"Text {number} holds no mask token. Put {tokenizer.mask_token} where a token is to be filled in."
        )
    return [_best(logits[place], decode, top) for place in places]


def _best(logits: np.ndarray[Any, Any], decode: Decode, top: int) -> list[Fill]:
    weights = np.exp(logits - logits.max())
    scores = weights / weights.sum()
    best = np.argsort(-scores)[:top]
    return [Fill(decode([int(i)]).strip(), int(i), float(scores[i])) for i in best]


TASK = Answering(fill_mask)
