"""One folder put in the place of another: at no moment is there neither, and whoever has one open keeps it."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

# Where a file system, or the kernel, exchanges no names. The old folder then steps aside first.
LACKING = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
NEW, OLD = "new", "old"  # a version before it has its place, and the one that stepped aside for it
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of linux/fs.h


def put(work: Path, place: Path) -> None:
    """Give a finished folder its place. What lay there is then where `work` was, or beside it under OLD.

    Raises:
        OSError: neither is changed.
    """
    while True:
        try:
            if place.exists():
                _settle(work)
            _exchange(work, place)
            return
        except FileNotFoundError:  # nothing lies there
            try:
                work.rename(place)
                return
            except OSError as error:
                if error.errno not in TAKEN:  # by now something does
                    raise
        except OSError as error:
            if error.errno not in LACKING:
                raise
            step_aside(work, place)
            return


def step_aside(work: Path, place: Path) -> None:
    """The same in two steps. Who is killed between them leaves OLD beside NEW, which `put_back` returns."""
    old = work.with_name(OLD)
    for number in count():
        with suppress(FileNotFoundError):
            place.rename(old)
        try:
            work.rename(place)
            return
        except OSError as error:
            if error.errno not in TAKEN:
                raise
        with suppress(FileNotFoundError):  # between the two steps another's took the place: ours has been followed
            old.rename(work.with_name(f"{OLD}-{number}"))


def put_back(aside: Path, place: Path) -> None:
    """Return what stepped aside and was never followed by another, which still lies beside it then."""
    if (aside / OLD).is_dir() and (aside / NEW).is_dir() and not place.exists():
        (aside / OLD).rename(place)


def _exchange(one: Path, other: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def _settle(folder: Path) -> None:
    """Bring the files to the disk: what they replace is deleted next."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
