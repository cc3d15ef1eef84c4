"""What a caller hands over: one request, or many in an order."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from headrace.errors import InputError


def many(given: Any, name: str) -> bool:
    """Whether something holds requests, and is not a single one (or nothing that could be one).

    Args:
        name: what it is, at the beginning of a message.

    Raises:
        InputError: a mapping or a set: their order is not the caller's, and answers come back in an order.
    """
    if isinstance(given, (Mapping, set, frozenset)):
        raise InputError(
            f"{name} came as {reprlib.repr(given)}, which has no order for the answers to come back in. Pass a list: "
            "list(x), or list(x.values()) of a dict."
        )
    # An array without axes says that it is iterable, and is not.
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes)) and getattr(given, "ndim", 1) != 0


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
