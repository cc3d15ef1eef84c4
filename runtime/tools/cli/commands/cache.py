"""The command that shows and clears the cache of compiled code."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import ArtifactError
from headrace.runtime.tools.cli.options import Json
from headrace.runtime.tools.inspect.tables import aligned
from headrace.utils import code_cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete all of it. What runs now runs on.")] = False,
    as_json: Json = False,
) -> None:
    """Show the compiled code that is kept for the next process, or clear it."""
    import json

    folder = _folder()
    if clear:
        count, size = code_cache.clear(folder)
        print(f"{folder}: {count} cleared, {_megabytes(size)}")
        return
    held = code_cache.entries(folder)
    if as_json:
        for entry in held:
            print(json.dumps({"what": entry.label, "file": str(entry.path), "bytes": entry.size, "used": entry.used}))
        return
    total = sum(entry.size for entry in held)
    print(f"{folder}: {len(held)} kept, {_megabytes(total)} of {_megabytes(code_cache.LARGEST)}")
    if folder.exists() and (why := code_cache.refusal(folder)):
        print(f"It is not used: {why}.")
    rows = [
        (entry.label, _megabytes(entry.size), f"{datetime.fromtimestamp(entry.used):%Y-%m-%d %H:%M}") for entry in held
    ]
    print("\n".join(aligned([("what", "size", "last used"), *rows])) if rows else "Nothing is kept.")


def _folder() -> Path:
    try:
        folder = code_cache.place()
    except RuntimeError as error:
        raise ArtifactError(f"The cache has no place: {error} Name one in {code_cache.VARIABLE}.") from error
    if folder is None:
        raise ArtifactError(f"The cache is off: {code_cache.VARIABLE} says so. Unset it, or name a folder there.")
    return folder


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
