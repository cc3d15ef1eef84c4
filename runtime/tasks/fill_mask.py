"""The likeliest tokens at the mask tokens of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.runtime.text.encoded import Encoded

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Fill:
    """One token for one mask: its text, its id and its probability."""

    token: str
    id: int
    score: float


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
