"""Save a compiled model to a folder and load it back without tracing or compiling.

The manifest `headrace.json` holds every decision and the sha256 of every file. A folder is written beside its place
and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import torch

from headrace import __version__
from headrace.backends import backend as find_backend
from headrace.codec import decode, encode
from headrace.errors import ArtifactError
from headrace.frontend.load import read_tokenizer
from headrace.ir import OutputKind, Program
from headrace.runtime.engine import Lane
from headrace.runtime.model import CompiledModel
from headrace.runtime.states import require_known_state, state_for

MANIFEST = "headrace.json"
FORMAT = 1
FIELDS = frozenset(
    {"format", "headrace", "torch", "target", "task", "max_length", "token_budget", "program", "lanes", "files"}
)


def save(model: CompiledModel, folder: Path) -> Path:
    """Write the model's executables, tokenizer and manifest.

    Raises:
        ArtifactError: the folder exists and is no saved model, so replacing it would lose something.
    """
    folder = folder.expanduser().absolute()
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ArtifactError(f"{folder} is a link or a file. Choose a new folder; nothing was written.")
    if folder.exists() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
        raise ArtifactError(f"{folder} exists and is no saved model. Choose a new folder; nothing was written.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{folder.parent} cannot be made: {error.strerror}. Nothing was written.") from error
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary) / "model"
        work.mkdir()
        _write(model, work)
        old = Path(temporary) / "old"
        if folder.exists():
            folder.replace(old)
        work.replace(folder)
    return folder


def _write(model: CompiledModel, work: Path) -> None:
    lanes = {}
    for kind, lane in model.engine.lanes.items():
        name = f"{kind.value}{model.engine.backend.suffix}"
        lane.executable.save(work / name)
        lanes[kind.value] = {"file": name, "program": encode(lane.program)}
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(work / "tokenizer")
    files = {str(path.relative_to(work)): _sha256(path) for path in sorted(work.rglob("*")) if path.is_file()}
    manifest = {
        "format": FORMAT,
        "headrace": __version__,
        "torch": str(torch.__version__),
        "target": model.target,
        "task": model.task,
        "max_length": model.max_length,
        "token_budget": model.engine.token_budget,
        "program": encode(model.program),
        "lanes": lanes,
        "files": files,
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))


def load(folder: str | Path, target: str = "auto", trust: bool | None = None) -> CompiledModel:
    """Load what `CompiledModel.save` wrote.

    Args:
        target: "auto" takes the target that the model was compiled for; another is refused.
        trust: a saved model holds machine code, which loading runs. None trusts a folder that is yours and that
            nobody else can write to.

    Raises:
        ArtifactError: the folder is damaged, partial, foreign, newer, untrusted, or for another torch or target.
    """
    folder = Path(folder).expanduser()
    manifest = _manifest(folder)
    _check_versions(folder, manifest, target)
    _check_trust(folder, trust)
    _check_files(folder, manifest["files"])
    try:
        program = decode(Program, manifest["program"])
        programs = {OutputKind(kind): decode(Program, lane["program"]) for kind, lane in manifest["lanes"].items()}
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"{folder}/{MANIFEST} holds facts that this version cannot read: {error}") from error
    require_known_state(program)
    backend = find_backend(manifest["target"], compiles=False)
    lanes = {
        kind: Lane(one, backend.load(folder / manifest["lanes"][kind.value]["file"], one), state_for(one))
        for kind, one in programs.items()
    }
    tokenizer = read_tokenizer(folder / "tokenizer") if (folder / "tokenizer").is_dir() else None
    return CompiledModel(
        program, backend, tokenizer, task=manifest["task"], max_length=manifest["max_length"],
        token_budget=manifest["token_budget"], lanes=lanes,
    )  # fmt: skip


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{folder} is no saved model: it has no {MANIFEST}. Give a folder that `save` wrote.")
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or (isinstance(manifest.get("format"), int) and manifest["format"] > FORMAT):
        raise ArtifactError(f"{path} is of a newer format than this version reads ({FORMAT}). Upgrade headrace.")
    if set(manifest) != FIELDS or manifest["format"] != FORMAT:
        differs = ", ".join(sorted(set(manifest) ^ FIELDS)) or "format"
        raise ArtifactError(f"{path} is not a manifest of this version: {differs} differs. Save the model again.")
    return manifest


def _check_versions(folder: Path, manifest: dict[str, Any], target: str) -> None:
    if target not in ("auto", manifest["target"]):
        raise ArtifactError(f"{folder} was compiled for {manifest['target']}, not {target}. Compile it for {target}.")
    here = str(torch.__version__).split("+")[0]
    if str(manifest["torch"]).split("+")[0] != here:
        raise ArtifactError(
            f"{folder} was compiled with torch {manifest['torch']}, and torch {here} is installed: compiled code is "
            "not portable between them. Install that torch, or compile the model again."
        )


def _check_trust(folder: Path, trust: bool | None) -> None:
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


def _check_files(folder: Path, files: dict[str, str]) -> None:
    missing = [name for name in files if ".." in Path(name).parts or not (folder / name).is_file()]
    changed = [name for name in files if name not in missing and _sha256(folder / name) != files[name]]
    if missing or changed:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"changed {', '.join(changed)}"] * bool(changed)
        raise ArtifactError(f"{folder} is damaged: {'; '.join(parts)}. Save the model again.")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
