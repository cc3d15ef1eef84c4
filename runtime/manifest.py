"""The manifest of a saved model and the folder around it: written whole or not at all, read back with suspicion.

`headrace.json` holds every decision and the sha256 of every other file. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.errors import ArtifactError

MANIFEST = "headrace.json"
FORMAT = 1
FIELDS = frozenset(
    {"format", "headrace", "libraries", "target", "task", "max_length", "token_budget", "program", "lanes", "tokenizer",
     "export", "files", "digest"}
)  # fmt: skip


@contextmanager
def new_folder(folder: Path, manifest: str = MANIFEST) -> Iterator[tuple[Path, Path]]:
    """A working folder that takes the place of `folder` once the block ends without an error.

    Args:
        manifest: the file by which a folder that may be replaced is known.

    Yields:
        The working folder, and the place that it will have.

    Raises:
        ArtifactError: the folder exists and has no such file, so replacing it would lose something.
    """
    folder = folder.expanduser().absolute()
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ArtifactError(f"{folder} is a link or a file. Choose a new folder; nothing was written.")
    if folder.exists() and not (folder / manifest).is_file() and any(folder.iterdir()):
        what = "saved model" if manifest == MANIFEST else f"folder with a {manifest}"
        raise ArtifactError(f"{folder} exists and is no {what}. Choose a new folder; nothing was written.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{folder.parent} cannot be made: {error.strerror}. Nothing was written.") from error
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary) / "model"
        work.mkdir()
        yield work, folder
        if folder.exists():
            folder.replace(Path(temporary) / "old")
        work.replace(folder)


def write_manifest(work: Path, facts: dict[str, Any]) -> None:
    """Write the manifest of everything that lies in the folder by now."""
    files = {str(path.relative_to(work)): sha256(path) for path in sorted(work.rglob("*")) if path.is_file()}
    manifest = {"format": FORMAT, "headrace": __version__, **facts, "files": files}
    manifest["digest"] = digest(manifest)
    assert set(manifest) == FIELDS, set(manifest) ^ FIELDS
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a saved model.

    Raises:
        ArtifactError: there is none, or it is none of this version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{folder} is no saved model: it has no {MANIFEST}. Give a folder that `save` wrote.")
    try:
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
    return manifest


def digest(manifest: dict[str, Any]) -> str:
    """What everything else in the manifest comes to, however it is laid out."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check_trust(folder: Path, trust: bool | None) -> None:
    """Refuse machine code of unknown origin.

    Raises:
        ArtifactError: `trust` is False, or None and the folder is another user's or open to others.
    """
    if trust is True:
        return
    status = folder.stat()
    mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    if trust is False or not mine or status.st_mode & stat.S_IWOTH:
        raise ArtifactError(
            f"{folder} holds machine code, which loading runs, and "
            f"{'trust is False' if trust is False else 'others own it or can write to it'}. Pass trust=True if you "
            "know where it comes from."
        )


def check_files(folder: Path, files: dict[str, str]) -> None:
    """Refuse a folder in which a file is missing or is not the one that was written.

    Raises:
        ArtifactError: names every such file.
    """
    if not isinstance(files, dict):
        raise ArtifactError(f"{folder}/{MANIFEST} lists no files. Save the model again.")
    missing = [name for name in files if ".." in Path(name).parts or not (folder / name).is_file()]
    changed = [name for name in files if name not in missing and sha256(folder / name) != files[name]]
    if missing or changed:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"changed {', '.join(changed)}"] * bool(changed)
        raise ArtifactError(f"{folder} is damaged: {'; '.join(parts)}. Save the model again.")


def sha256(path: Path) -> str:
    """The file's digest in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
