"""Requests in the containers of other libraries: columns of Arrow, arrays of numpy."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import InputError

# Of a long column, so many become Python's at a time.
PART = 1024


def unpacked(given: Any, name: str) -> Any:
    """What a container holds as Python's own values, and anything else as it is.

    Args:
        given: a column of Arrow, drawn in parts; or an array of texts, of which one of two columns holds pairs.
        name: what it is, at the beginning of a message.

    Raises:
        InputError: a table of Arrow.
    """
    if hasattr(given, "column_names") and hasattr(given, "to_pylist"):
        raise InputError(
            f"{name} came as a table of the columns {reprlib.repr(given.column_names)}. Pass one of them: "
            f"table[{given.column_names[0] if given.column_names else 'column'!r}]."
        )
    if hasattr(given, "to_pylist") and hasattr(given, "slice"):
        return _drawn(given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "UOT" and given.ndim:
        return [tuple(row) if isinstance(row, list) else row for row in given.tolist()]
    return given


def _drawn(column: Any) -> Iterator[Any]:
    for begin in range(0, len(column), PART):
        yield from column.slice(begin, PART).to_pylist()
