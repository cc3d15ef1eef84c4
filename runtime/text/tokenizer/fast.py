"""Read texts with the tokenizers library itself: what lies around it in Python costs more than the reading."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.onnx.names import IDS, TYPES
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.tokenizer.equivalence import PROBES, alike


def read_direct(tokenizer: Any, columns: list[list[str]], longest: int | None = None) -> list[Any]:
    """What the library answers for texts, or for pairs given as two columns. One call at a time.

    Args:
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
    found: list[Any] = library.encode_batch_fast(texts, add_special_tokens=True)
    return found


def as_encoded(found: list[Any], typed: bool, longest: int | None, own: int) -> list[Encoded]:
    """The library's answers as requests.

    Args:
        typed: whether to give token types.
        longest: what they were truncated to.
        own: the tokens that the tokenizer adds to a text, and to each part that it cuts off.
    """
    return [
        Encoded(
            _integers(one.ids),
            _integers(one.type_ids) if typed else None,
            lost=sum(len(part) - own for part in one.overflowing) if len(one) == longest else 0,
        )
        for one in found
    ]


def _integers(given: list[int]) -> NDArray[np.int64]:
    # An array of C's reads a list in two thirds of the time that numpy takes.
    return np.frombuffer(array("I", given), np.uint32).astype(np.int64)


def own_tokens(tokenizer: Any) -> int:
    """How many tokens the tokenizer adds to a text."""
    return int(tokenizer.backend_tokenizer.num_special_tokens_to_add(False))


def types_alone(tokenizer: Any) -> bool:
    """Whether a text that is no pair has a token type other than 0; which it is hangs on no word of the text."""
    return any(any(one.type_ids) for one in read_direct(tokenizer, [PROBES]))


def reads_alike(tokenizer: Any) -> bool:
    """Whether the library alone reads as a call of the tokenizer does, of texts and of pairs."""
    if not tokenizer.is_fast or not hasattr(tokenizer, "split_special_tokens"):
        return False
    if not hasattr(getattr(tokenizer, "backend_tokenizer", None), "encode_batch_fast"):
        return False

    def called(columns: list[list[str]]) -> list[tuple[list[int], list[int]]]:
        found = tokenizer(*columns, padding=False, truncation=False, return_token_type_ids=True, verbose=False)
        return list(zip(found[IDS], found[TYPES], strict=True))

    def direct(columns: list[list[str]]) -> list[tuple[list[int], list[int]]]:
        return [(one.ids, one.type_ids) for one in read_direct(tokenizer, columns)]

    return alike(called, direct)
