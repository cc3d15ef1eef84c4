"""The folders that models are saved to: replaced whole or not at all, and read as one version throughout."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import ArtifactError, HeadraceError
from headrace.runtime.artifact.exchange import NEW, put
from headrace.runtime.artifact.manifest import MANIFEST, path_of
from headrace.runtime.artifact.working import being_replaced, same, sweep, working
from headrace.utils.file_lock import lock

# Seconds for which a reader waits on a writer between the two steps that some file systems take to replace a folder.
PATIENCE = 2.0


def require_place(folder: str | Path, manifest: str = MANIFEST) -> Path:
    """The place of a folder that can be written: asked before the work that would be lost otherwise.

    Args:
        manifest: the file by which a folder that may be replaced is known.

    Raises:
        ArtifactError: the folder exists and has no such file, or more than that lists, so replacing it would lose
            something; or it cannot be made.
    """
    folder = path_of(folder).absolute()
    try:
        _require_replaceable(folder, manifest)
        nearest = next(parent for parent in folder.parents if parent.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass  # permissions do not tell: the file system may be read-only
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _require_replaceable(folder: Path, manifest: str) -> None:
    with suppress(FileNotFoundError):  # looked at once: another writer may take it away meanwhile
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise ArtifactError(f"{folder} is a link or a file. Choose a new folder; nothing was written.")
    with held(folder) as inside:
        if inside.is_dir() and not (inside / manifest).is_file() and any(inside.iterdir()):
            what = "saved model" if manifest == MANIFEST else f"folder with a {manifest}"
            raise ArtifactError(f"{folder} exists and is no {what}. Choose a new folder; nothing was written.")
        others = _others(inside, manifest)
    if others:
        met = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise ArtifactError(
            f"{folder} holds {met} beside what its {manifest} lists. To replace the folder would lose that: move it "
            "away, or choose a new folder; nothing was written."
        )


def _others(folder: Path, manifest: str) -> list[str]:
    """What lies in a folder and was not written with its manifest; one that cannot be read lists nothing."""
    held = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file())
    try:
        listed = {manifest, *json.loads((folder / manifest).read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        listed = {manifest}
    return [name for name in held if name not in listed]


def _unwritable(folder: Path, error: Exception) -> ArtifactError:
    why = getattr(error, "strerror", None) or error
    return ArtifactError(f"{folder} cannot be written: {why}. Choose another place; nothing was written.")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Tell of what cannot be written in one way, whichever library writes it."""
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error) from error
    except Exception as error:
        if "(os error " not in str(error):  # so the tokenizers library says it, in a bare exception
            raise
        raise _unwritable(folder, error) from error


@contextmanager
def new_folder(folder: str | Path, manifest: str = MANIFEST) -> Iterator[tuple[Path, Path]]:
    """A working folder that takes the place of `folder` once the block ends without an error.

    Until then what lies there stays, whatever happens: an error, a full disk, the end of the process. Whoever reads it
    meanwhile reads the one or the other, whole.

    Args:
        manifest: the file by which a folder that may be replaced is known.

    Yields:
        The working folder, and the place that it will have.

    Raises:
        ArtifactError: as for `require_place`, or the disk is full.
    """
    folder = require_place(folder, manifest)
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        sweep(folder.parent)
    with _writing(folder), working(folder) as scratch:
        work = scratch / NEW
        work.mkdir()
        yield work, folder
        _require_replaceable(folder, manifest)  # others may have come while the block ran
        put(work, folder)


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """The version of a saved folder that lies there now, by a path that stays its own when another takes its place.

    It is kept for as long as the block runs. What is refused inside is told by the folder's own name.

    Yields:
        That path; the folder itself where there is none, or where the system has no such paths.
    """
    place = folder.absolute()
    descriptor = _opened(place)
    if descriptor is None:
        yield folder
        return
    inside = Path(f"/proc/self/fd/{descriptor}")
    try:
        yield inside if inside.is_dir() else folder
    except HeadraceError as error:
        error.args = tuple(str(said).replace(str(inside), str(folder)) for said in error.args)
        raise
    finally:
        replaced = not same(place, descriptor)
        os.close(descriptor)
        if replaced:
            sweep(place.parent)


def _opened(place: Path) -> int | None:
    """The folder, open and locked against deletion; None where it cannot be opened."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            sweep(place.parent)  # the writer may have been killed between two steps
            if time.monotonic() > until or not (being_replaced(place) or place.exists()):
                return None
            time.sleep(0.01)
            continue
        except OSError:
            return None
        lock(descriptor, fcntl.LOCK_SH, otherwise=True)
        if same(place, descriptor):
            return descriptor
        os.close(descriptor)  # replaced since it was opened, perhaps deleted
