"""The manifest of a saved model, read back with suspicion. How its folder is replaced is the matter of places.

`headrace.json` holds every decision and the sha256 of every other file. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.errors import ArtifactError
from headrace.runtime.artifact.older import fill_roles
from headrace.utils.home import expanded
from headrace.utils.inside import inside

MANIFEST = "headrace.json"
FORMAT = 1
FIELDS = frozenset(
    {"format", "headrace", "libraries", "target", "task", "max_length", "token_budget", "program", "lanes", "tokenizer",
     "export", "files", "digest"}
)  # fmt: skip


def path_of(folder: str | Path) -> Path:
    """A folder that a caller names, with `~` as their home.

    Raises:
        ArtifactError: something that names none.
    """
    name = str(folder) if isinstance(folder, (str, Path)) else ""
    # The libraries that write and read the files take a path in UTF-8 alone.
    if not name or "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ArtifactError(f"The folder is {reprlib.repr(folder)}; the path of one is accepted, as a str or a Path.")
    return expanded(folder, ArtifactError)


def write_manifest(work: Path, facts: dict[str, Any]) -> str:
    """Write the manifest of everything that lies in the folder by now.

    Returns:
        Its digest.
    """
    files = {str(path.relative_to(work)): sha256(path) for path in sorted(work.rglob("*")) if path.is_file()}
    manifest = {"format": FORMAT, "headrace": __version__, **facts, "files": files}
    manifest["digest"] = digest(manifest)
    assert set(manifest) == FIELDS, set(manifest) ^ FIELDS
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return str(manifest["digest"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a saved model.

    Raises:
        ArtifactError: there is none, or it is none of this version, or it names what lies outside the folder.
    """
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise ArtifactError(f"There is no folder {folder}. Give one that `save` or `export_onnx` wrote.")
        if not path.is_file():
            raise ArtifactError(f"{folder} is no saved model: it has no {MANIFEST}. Give a folder that `save` wrote.")
        manifest = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or (isinstance(manifest.get("format"), int) and manifest["format"] > FORMAT):
        raise ArtifactError(f"{path} is of a newer format than this version reads ({FORMAT}). Upgrade headrace.")
    if set(manifest) != FIELDS or manifest["format"] != FORMAT:
        differs = ", ".join(sorted(set(manifest) ^ FIELDS)) or "format"
        raise ArtifactError(f"{path} is not a manifest of this version: {differs} differs. Save the model again.")
    if manifest["digest"] != digest(manifest):
        raise ArtifactError(f"{folder} is damaged: changed {MANIFEST}. Save the model again.")
    _require_inside(folder, manifest)
    fill_roles(manifest)
    return manifest


def _require_inside(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that leads elsewhere by any of its names: what it says there is not this folder's."""
    try:
        named = [*manifest["files"], *(lane["file"] for lane in manifest["lanes"].values())]
        named += [
            manifest[part][key] for part, key in (("tokenizer", "folder"), ("export", "report")) if manifest[part]
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"{folder}/{MANIFEST} holds facts that this version cannot read: {error}") from error
    if out := [repr(name) for name in named if not inside(folder, name)]:
        raise ArtifactError(
            f"{folder}/{MANIFEST} names {', '.join(out)}, which leads out of the folder. Names are relative, and links "
            "end within it: a folder that was copied with its links followed (cp -rL) has no other."
        )


def require_own(side_files: Mapping[str, str | None]) -> None:
    """Refuse to copy what a model's folder only links to, which whoever made the links may not have been allowed to.

    Args:
        side_files: the folder's texts by name, None where a name is a link that leads out.

    Raises:
        ArtifactError: names every such file.
    """
    if out := [name for name, text in side_files.items() if text is None]:
        raise ArtifactError(
            f"Of the model's folder, {', '.join(out)} would be written, and is a link that leads out of the folder. "
            "Copy the folder with its links followed (cp -rL) if all of it is meant to be there."
        )


def digest(manifest: dict[str, Any]) -> str:
    """What everything else in the manifest comes to, however it is laid out."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check_files(folder: Path, files: dict[str, str]) -> None:
    """Refuse a folder in which a file is missing or is not the one that was written, or which links to what is not its.

    Raises:
        ArtifactError: names every such file.
    """
    if not isinstance(files, dict):
        raise ArtifactError(f"{folder}/{MANIFEST} lists no files. Save the model again.")
    if wrong := damage(folder, files):
        raise ArtifactError(f"{folder} is damaged: {wrong}. Save the model again.")
    # Also of what is not listed: a tokenizer's library reads whatever file it finds of a name that it knows.
    links = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_symlink())
    if out := [name for name in links if not inside(folder, name)]:
        raise ArtifactError(f"In {folder}, {', '.join(out)} is a link that leads out of the folder. Remove it.")


def damage(folder: Path, files: Mapping[str, str]) -> str:
    """What is wrong with files of these digests, by name; empty where each is as it was written."""
    found: dict[str, list[str]] = {"outside the folder": [], "missing": [], "unreadable": [], "changed": []}
    for name, digest_ in files.items():
        try:
            if not inside(folder, name):
                found["outside the folder"].append(str(name))
            elif not (folder / name).is_file():
                found["missing"].append(name)
            elif sha256(folder / name) != digest_:
                found["changed"].append(name)
        except OSError:
            found["unreadable"].append(name)
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in found.items() if names)


def sha256(path: Path) -> str:
    """The file's digest in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
