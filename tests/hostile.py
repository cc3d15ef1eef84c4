"""Folders that would run something of their maker's: here no more than to make an empty file."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.runtime.artifact.manifest import digest, sha256

# A file in an archive by the end of its name, and what becomes of its bytes.
Change = tuple[str, Callable[[bytes], bytes]]


class Touches:
    """What touches a file as soon as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.marker,)


def pickled(marker: Path) -> bytes:
    return pickle.dumps(Touches(marker))


def pickled_weight(marker: Path) -> list[Change]:
    """A weight that the archive says is a pickle."""

    def says(config: bytes) -> bytes:
        read = json.loads(config)
        next(one for one in read["config"].values() if one["path_name"] == "weight_0")["use_pickle"] = True
        return json.dumps(read).encode()

    return [("model_weights_config.json", says), ("weights/weight_0", lambda _: pickled(marker))]


def pickled_inputs(marker: Path) -> list[Change]:
    """Inputs to try the program on."""
    return [("sample_inputs/model.pt", lambda _: pickled(marker))]


def evaluated_size(marker: Path) -> list[Change]:
    """A size of the graph whose expression is Python: no pickle at all."""
    code = f"__import__('pathlib').Path('{marker}').touch() or 7"
    return [
        ("models/model.json", lambda graph: re.sub(rb'("expr_str": )"[^"]*"', rb'\1"' + code.encode() + b'"', graph))
    ]


WAYS: dict[str, Callable[[Path], list[Change]]] = {
    "a pickled weight": pickled_weight,
    "pickled sample inputs": pickled_inputs,
    "an expression": evaluated_size,
}


def poison(folder: Path, file: str, changes: list[Change]) -> None:
    """Change what lies in an archive, and make the folder's digests fit, as anybody can."""
    made = io.BytesIO()
    with zipfile.ZipFile(folder / file) as source, zipfile.ZipFile(made, "w") as target:
        for entry in source.infolist():
            held = source.read(entry)
            for end, change in changes:
                held = change(held) if entry.filename.endswith(end) else held
            target.writestr(entry.filename, held)
    (folder / file).write_bytes(made.getvalue())
    sign(folder, lambda manifest: None)


def sign(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and make its digests fit the files."""
    path = folder / "headrace.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    for name in manifest["files"]:
        if (folder / name).is_file():
            manifest["files"][name] = sha256(folder / name)
    manifest["digest"] = digest(manifest)
    path.write_text(json.dumps(manifest))


def as_snapshot(folder: Path, cache: Path) -> Path:
    """A folder as the hub's client lays it out."""
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        place = snapshot / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blobs / str(number))
        place.symlink_to(os.path.relpath(blobs / str(number), place.parent))
    return snapshot
