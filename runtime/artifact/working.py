"""Hidden folders in which saved models are put together, and in which what they replaced waits for its last reader.

Each holds a lock file, which its living writer has locked, and the name of the place that it works for. A writer that
was killed holds no lock: the next one sweeps its folder away. A version that somebody reads is locked by its readers,
and the last of them sweeps it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.runtime.artifact.exchange import OLD, put_back
from headrace.utils.file_lock import lock

PREFIX, LOCK = ".headrace-", "headrace.lock"


@contextmanager
def working(place: Path) -> Iterator[Path]:
    """A hidden folder beside `place`, on the same file system; what is left in it afterwards goes.

    Raises:
        OSError: none can be made there.
    """
    folder, lock = _made(place)
    try:
        yield folder
    finally:
        _clear(folder, place)
        os.close(lock)


def sweep(parent: Path) -> None:
    """Delete what killed writers and departed readers left in a folder, and return what they had set aside."""
    with suppress(OSError):
        for folder in _hidden(parent):
            with suppress(OSError):
                _sweep(folder)


def being_replaced(place: Path) -> bool:
    """Whether a writer is between the two steps in which some file systems replace a folder."""
    with suppress(OSError):
        return any(_works_for(folder) == place.name and (folder / OLD).exists() for folder in _hidden(place.parent))
    return False


def same(path: Path, descriptor: int) -> bool:
    """Whether what is open is what lies at the path now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _made(place: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place.parent))
        with suppress(FileNotFoundError):  # another's sweep took it before it was locked
            held = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            if lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB, otherwise=True) and same(folder / LOCK, held):
                try:
                    os.write(held, os.fsencode(place.name))
                except OSError:
                    _clear(folder, place)
                    os.close(held)
                    raise
                return folder, held
            os.close(held)


def _hidden(parent: Path) -> list[Path]:
    """The hidden folders of ours: another user's could be made into a link under our hands."""
    with os.scandir(parent) as entries:
        found = [entry for entry in entries if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)]
    return [Path(entry) for entry in found if entry.stat(follow_symlinks=False).st_uid == os.geteuid()]


def _works_for(folder: Path) -> str:
    with suppress(OSError):
        return os.fsdecode((folder / LOCK).read_bytes())
    return ""


def _sweep(folder: Path) -> None:
    try:
        held = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        folder.rmdir()  # it was not even begun; one that holds something is no folder of this kind
        return
    try:
        if lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB, otherwise=False) and same(folder / LOCK, held):
            _clear(folder, folder.parent / Path(_works_for(folder)).name)
    finally:
        os.close(held)


def _clear(folder: Path, place: Path) -> None:
    """Delete a hidden folder, the lock last; a version that is being read stays, and the folder with it."""
    with suppress(OSError):
        put_back(folder, place)
        kept = [path for path in folder.iterdir() if path.name != LOCK and not _deleted(path)]
        if not kept:
            (folder / LOCK).unlink()
            folder.rmdir()


def _deleted(path: Path) -> bool:
    """Delete a file or a version, unless a reader holds it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return True
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if unread := lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB, otherwise=True):
            shutil.rmtree(path)
        return unread
    finally:
        os.close(held)
