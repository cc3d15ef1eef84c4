"""Keys of a folder's files: each is applied, is known to change nothing, or is refused by its name."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import LoadError


def require_known(given: Any, where: str, applied: Collection[str], idle: Collection[str] = ()) -> dict[str, Any]:
    """The mapping itself, if nothing in it would be read past. A key without a value says nothing.

    Args:
        where: the file, and the place in it, for the message.
        applied: the keys that the caller reads.
        idle: those that change no answer here.

    Raises:
        LoadError: any other key, or something that has none.
    """
    if not isinstance(given, Mapping):
        raise LoadError(f"{where} is {reprlib.repr(given)}; keys and values are accepted.")
    others = [f"{key}={reprlib.repr(v)}" for key, v in given.items() if v is not None and key not in {*applied, *idle}]
    if others:
        raise LoadError(
            f"{where} says {', '.join(sorted(others))}, which is not served; known are "
            f"{', '.join(sorted({*applied, *idle}))}. Take it out if the model answers right without it."
        )
    return dict(given)


def read_json(path: Path) -> Any:
    """What a file holds.

    Raises:
        LoadError: it is not there, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
