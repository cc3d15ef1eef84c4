"""What a caller hands over: one request, or many in an order."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.runtime.text.prompts import require_unicode


def many(given: Any, name: str) -> bool:
    """Whether something holds requests, and is not a single one (or nothing that could be one).

    Args:
        name: what it is, at the beginning of a message.

    Raises:
        InputError: a mapping or a set: their order is not the caller's, and answers come back in an order. Or a table,
            which gives the names of its columns.
    """
    if isinstance(given, (Mapping, set, frozenset)):
        raise InputError(
            f"{name} came as {reprlib.repr(given)}, which has no order for the answers to come back in. Pass a list: "
            "list(x), or list(x.values()) of a dict."
        )
    if _gives_keys(given):
        raise InputError(
            f"{name} came as {reprlib.repr(given)}, which gives its keys (a table the names of its columns) and not "
            "what they stand for. Pass a list: list(x[column])."
        )
    # An array without axes says that it is iterable, and is not.
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes)) and getattr(given, "ndim", 1) != 0


def require_words(text: Any, number: int) -> tuple[str, ...]:
    """The words of a text that came in words.

    Raises:
        InputError: it is no list of str.
    """
    if not isinstance(text, (list, tuple)) or not all(isinstance(word, str) for word in text):
        raise InputError(
            f"Text {number} is {reprlib.repr(text)}; in one call every text is a str, or every text is a list of words."
        )
    for word in text:
        require_unicode(word, f"Text {number}")
    return tuple(text)


def _gives_keys(given: Any) -> bool:
    """Whether going through something draws its keys, as with the data frames of pandas, and not what they stand for.

    A column of such a frame has keys too, and gives its values.
    """
    keys = getattr(given, "keys", None)
    if not callable(keys) or not hasattr(given, "__getitem__"):
        return False
    try:
        drawn = [one in {key} for one, key in zip(given, keys(), strict=False)]
    except (TypeError, ValueError):  # keys are hashed, values need not be
        return False
    return bool(drawn) and all(drawn)


def read_array(given: Any) -> tuple[NDArray[Any] | None, str]:
    """The array that something is; None, and why, where numpy cannot tell or would take for a value what is masked."""
    if isinstance(given, np.ma.MaskedArray):
        return None, "it is a masked array"
    try:
        return np.asarray(given), ""
    except Exception as error:  # of whatever library it is of: grad, other devices, sparse and nested tensors
        return None, str(error)


def counts(value: Any, least: int = 1) -> bool:
    """Whether a value is a number of things: an int of 1 and above, or of another least, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_choice(name: str, value: bool | None) -> None:
    """Refuse what is neither yes, no nor left open: "False" would count as yes.

    Raises:
        InputError: it is none of True, False and None.
    """
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {reprlib.repr(value)}; True, False or None is accepted.")
