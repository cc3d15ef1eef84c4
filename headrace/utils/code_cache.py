"""Compiled code by what it was compiled from, for this user's other processes and models.

What lies here is run, so it counts only where nobody else can have put it: as a saved model, it is this user's, in
folders that others cannot write to. An entry is one file, put in place whole, that begins with the digest of the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace import debug
from headrace.utils.file_lock import lock
from headrace.utils.inside import real
from headrace.utils.ownership import open_parents, open_to_others

VARIABLE, OFF = "HEADRACE_CODE_CACHE", "off"
ENTRY, LOCK = ".code", ".lock"
# Bytes of all entries. Those that were used longest ago make room for a new one.
LARGEST = 1 << 30


@dataclass(frozen=True)
class Entry:
    """One piece of code: of what, where, how large, and when it was last used, in seconds since 1970."""

    label: str
    path: Path
    size: int
    used: float


def place() -> Path | None:
    """The folder: `$HEADRACE_CODE_CACHE`, else `code` below `$HEADRACE_CACHE` or the user's cache; None if it is off.

    Raises:
        RuntimeError: the user has no home.
    """
    if named := os.environ.get(VARIABLE):
        return None if named == OFF else Path(named).absolute()
    if named := os.environ.get("HEADRACE_CACHE"):
        return Path(named).absolute() / "code"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()) / "headrace" / "code"


def fetch(key: str, label: str, make: Callable[[], bytes]) -> bytes:
    """What was made from the same before, else what `make` makes now; of processes that ask at once, one makes it.

    Args:
        key: a digest of all that the result depends on.
        label: a line for people.
    """
    folder = _usable()
    if folder is None:
        return make()
    entry = folder / (key + ENTRY)
    if (held := _read(entry)) is not None:
        return held
    with _alone(folder / (key + LOCK)):
        if (held := _read(entry)) is None:
            held = make()
            _write(entry, label, held)
            _make_room(entry)
    return held


def entries(folder: Path) -> list[Entry]:
    """What a folder holds, the latest used first."""
    found = []
    for path in folder.glob("*" + ENTRY):
        with suppress(OSError):
            status = path.stat()
            with path.open("rb") as file:
                label = file.readline().decode(errors="replace").partition(" ")[2].strip()
            found.append(Entry(label, path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def clear(folder: Path) -> tuple[int, int]:
    """Delete all entries: how many there were, and their bytes. Processes that run such code keep it."""
    gone = entries(folder)
    for path in [*(entry.path for entry in gone), *folder.glob("*" + LOCK)]:
        path.unlink(missing_ok=True)
    return len(gone), sum(entry.size for entry in gone)


def refusal(folder: Path) -> str:
    """Why code that lies in a folder may be another's; empty where it cannot."""
    try:
        doubts = [*open_parents(folder, "the cache of compiled code"), open_to_others(folder.stat(), str(folder))]
    except OSError as error:
        return str(error)
    return next(filter(None, doubts), "")


def _usable() -> Path | None:
    """The folder, made where it is missing; None, and said, where it is off or cannot be trusted."""
    try:
        folder = place()
        if folder is None:
            return None
        folder = real(folder)
        for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        why = refusal(folder)
    except (OSError, RuntimeError) as error:  # the latter where the user has no home
        why = str(error)
    if why:
        debug.say(debug.STAGES, f"compiled code is neither read from the cache nor kept there: {why}")
        return None
    return folder


def _read(entry: Path) -> bytes | None:
    """What an entry holds; None where there is none, or where it is damaged or another's."""
    with suppress(OSError):
        with os.fdopen(os.open(entry, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if open_to_others(os.fstat(file.fileno()), str(entry)):
                return None
            digest, held = file.readline().partition(b" ")[0], file.read()
        if hashlib.sha256(held).hexdigest().encode() == digest:
            with suppress(OSError):
                os.utime(entry)  # which of them are used: the others go first
            return held
    return None


def _write(entry: Path, label: str, content: bytes) -> None:
    """Put an entry in place, whole; where there is no room for it, nothing."""
    head = f"{hashlib.sha256(content).hexdigest()} {' '.join(label.split())}\n"
    try:
        # Beside the entry, so that it only changes its name, and readable by its user alone.
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".") as folder:
            begun = Path(folder, "entry")
            begun.write_bytes(head.encode() + content)
            begun.chmod(0o600)
            begun.replace(entry)
    except OSError as error:
        debug.say(debug.STAGES, f"compiled code is not kept in the cache: {error}")


def _make_room(kept: Path) -> None:
    total = 0
    for entry in entries(kept.parent):
        total += entry.size
        if total > LARGEST and entry.path != kept:
            with suppress(OSError):
                entry.path.unlink()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait for the processes that make the same; one that is killed frees the lock, whose file goes with its use."""
    try:
        held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:  # nothing can be written: what is made is not kept either
        yield
        return
    try:
        lock(held, fcntl.LOCK_EX, otherwise=True)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)
