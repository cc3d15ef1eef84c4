"""Code in a model's folder that nobody has trusted: it is not run, and that is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import warn


def warn_of_code(file: Path, auto_map: Mapping[str, Any] | None, kinds: Iterable[str | None]) -> None:
    """Say which classes of the folder's own transformers' take the place of.

    Args:
        file: where they are named.
        auto_map: for each of transformers' auto classes, the folder's class.
        kinds: the auto classes that would be asked.
    """
    named = [f"{kind}: {auto_map[kind]}" for kind in kinds if auto_map and kind is not None and auto_map.get(kind)]
    if named:
        warn(
            f"{file} names code of its own (auto_map: {', '.join(named)}), which is not run: transformers' own classes "
            "answer, perhaps otherwise. Read that code, then pass trust_remote_code=True to run it.",
        )
