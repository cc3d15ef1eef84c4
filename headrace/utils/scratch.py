"""Where libraries write on the way: the system's folder for temporary files, and the cache of torch's compiler."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import HeadraceError, TargetError
from headrace.utils.file_lock import lock

TEMPORARY, CACHE = "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"
# What must be left for a file to be begun at all.
LEAST = 1 << 20


def require_temporary() -> None:
    """Refuse a folder for temporary files that cannot be written. Python's own way round it is not torch's.

    Raises:
        TargetError: says so.
    """
    if named := os.environ.get(TEMPORARY):
        _require(Path(named), TEMPORARY, "temporary files")
    _temporary()


def require_cache() -> None:
    """Refuse a cache of torch's compiler that cannot be written: torch makes it when its tracer is imported.

    Raises:
        TargetError: says so.
    """
    if named := os.environ.get(CACHE):
        _require(Path(named), CACHE, "what torch compiles")


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:  # of the places that Python tries, none
        raise TargetError(
            f"There is no folder that temporary files can be written to: {error.strerror or error}. Set {TEMPORARY} to "
            "one that you can write."
        ) from error


def _require(folder: Path, variable: str, what: str) -> None:
    try:
        if variable == CACHE:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TargetError(
            f"{variable} names {folder}, where {what} cannot be written: {error.strerror}. Set it to a folder that you "
            "can write, or unset it."
        ) from error


class Scratch:
    """A temporary folder; it goes with its last holder, in the last process that has one.

    Forked processes share its lock. So the end of a child removes nothing from under its parent, as it does with
    Python's own temporary folders, nor the end of a parent, as that of one which becomes a daemon.
    """

    def __init__(self) -> None:
        """Make it.

        Raises:
            TargetError: there is no room for one.
        """
        place = _temporary()
        try:
            self.path = Path(tempfile.mkdtemp(prefix="headrace-", dir=place))
        except OSError as error:
            raise _full(place, "A temporary folder", error) from error
        held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        lock(held, fcntl.LOCK_SH, otherwise=True)
        weakref.finalize(self, _remove, self.path, held, os.getpid())


def _remove(path: Path, held: int, maker: int) -> None:
    with suppress(OSError):  # a daemon has closed what it did not know, or somebody has cleared the folder away
        os.close(held)
        last = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        if lock(last, fcntl.LOCK_EX | fcntl.LOCK_NB, otherwise=os.getpid() == maker):
            shutil.rmtree(path, ignore_errors=True)
        os.close(last)


@contextmanager
def room_told(what: str, needs: int = LEAST) -> Iterator[None]:
    """Say that a disk is full where that is why a library failed, whose own words are of what it could not do then.

    Args:
        what: what was being made, in words that begin a sentence.
        needs: bytes that it writes on the way.

    Raises:
        TargetError: it failed, and where it writes there is no room for that.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if (place := next((one for one in _places() if _free(one) < max(needs, LEAST)), None)) is None:
            raise
        raise _full(place, what, error) from error


def _full(place: Path, what: str, error: Exception) -> TargetError:
    said = " ".join(str(error).split())[:300]
    return TargetError(
        f"{what} cannot be made: {place} has {_free(place) >> 10} KiB left ({error.__class__.__name__}: {said}). Make "
        f"room there, or set {TEMPORARY} and {CACHE} to folders with more."
    )


def _places() -> list[Path]:
    named = Path(os.environ.get(CACHE) or _temporary())
    return [place for place in (_temporary(), named) if place.is_dir()]


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free
