"""Read texts with the tokenizers library itself: what lies around it in Python costs more than the reading."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.probes import PROBES, alike


def read_direct(tokenizer: Any, columns: list[list[str]], typed: bool, longest: int | None = None) -> list[Encoded]:
    """Token ids of texts, or of pairs given as two columns, as a call of the tokenizer gives them.

    Args:
        typed: whether to give token types.
        longest: the tokens that each text, which is no pair, is truncated to. Of a pair the library would build every
            combination of the parts that it cuts off.
    """
    library = tokenizer.backend_tokenizer
    # A tokenizer's file may bring settings of its own.
    if longest is None:
        library.no_truncation()
    else:
        library.enable_truncation(longest, direction=tokenizer.truncation_side)
    library.no_padding()
    library.encode_special_tokens = tokenizer.split_special_tokens
    texts: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    found = library.encode_batch_fast(texts, add_special_tokens=True)
    return [Encoded(np.array(one.ids, np.int64), np.array(one.type_ids, np.int64) if typed else None) for one in found]


def leaves_room(tokenizer: Any, longest: int) -> bool:
    """Whether so many tokens hold more than those that the tokenizer adds to a text."""
    return bool(tokenizer.backend_tokenizer.num_special_tokens_to_add(False) < longest)


def types_alone(tokenizer: Any) -> bool:
    """Whether a text that is no pair has a token type other than 0; which it is hangs on no word of the text."""
    return any(one.types is not None and one.types.any() for one in read_direct(tokenizer, [PROBES], typed=True))


def reads_alike(tokenizer: Any) -> bool:
    """Whether the library alone reads as a call of the tokenizer does, of texts and of pairs."""
    if not tokenizer.is_fast or not hasattr(getattr(tokenizer, "backend_tokenizer", None), "encode_batch_fast"):
        return False

    def called(columns: list[list[str]]) -> list[tuple[list[int], list[int]]]:
        found = tokenizer(*columns, padding=False, truncation=False, return_token_type_ids=True, verbose=False)
        return list(zip(found["input_ids"], found["token_type_ids"], strict=True))

    def direct(columns: list[list[str]]) -> list[tuple[list[int], list[int]]]:
        found = read_direct(tokenizer, columns, typed=True)
        return [(one.ids.tolist(), [] if one.types is None else one.types.tolist()) for one in found]

    return alike(called, direct)
