"""What lies in a folder before a model is written there: an export gives way to the same one made anew, to no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ArtifactError
from headrace.ir import Source
from headrace.runtime.artifact.manifest import MANIFEST, path_of


def require_same(folder: str | Path, source: Source, task: str | None, export: Mapping[str, Any] | None) -> None:
    """Refuse to write where something else was exported to, or saved and is now to be exported over.

    Args:
        source, task: of the model that is to be written.
        export: its `profile` and `dtype` where it is exported, None where it is saved.

    Raises:
        ArtifactError: says what lies there.
    """
    there = _manifest(path_of(folder))
    if there is None or not (there["export"] or export):
        return
    name, configuration = there["program"]["source"]["name"], there["program"]["source"]["config_hash"]
    met, given = _words(name, there["task"], there["export"]), _words(source.name, task, export)
    if (met, configuration) == (given, source.config_hash):
        return
    other = " of another configuration" if met == given else ""
    raise ArtifactError(
        f"{folder} holds {met}. To write {given}{other} there would delete that: a folder holds one model in one form. "
        "Choose another folder, or move that one away first; nothing was written."
    )


def _words(name: str, task: str | None, export: Mapping[str, Any] | None) -> str:
    form = f"exported for {task} as {export['profile']} in {export['dtype']}" if export else "saved"
    return f"{name}, {form}"


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder's manifest says, None where there is none to be read: whether it may be replaced is asked later."""
    try:
        held: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        _words(held["program"]["source"]["name"], held["task"], held["export"])
        return held if "config_hash" in held["program"]["source"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
