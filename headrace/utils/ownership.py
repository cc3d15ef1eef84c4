"""Whether others than this user and root can have put something where it lies."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def open_parents(path: Path, what: str) -> Iterator[str]:
    """The folders above in which others can put something else in the path's place, in words."""
    for parent in reversed(path.parents):
        status = parent.stat()
        # In a folder such as /tmp all may write, and none may replace what is another's.
        if found := open_to_others(
            status, f"{parent}, in which {what} lies", sticky=bool(status.st_mode & stat.S_ISVTX)
        ):
            yield found


def open_to_others(status: os.stat_result, what: str, sticky: bool = False) -> str:
    """What others have to do with a file, in words; empty where they have nothing."""
    if status.st_uid not in (0, os.geteuid()):
        return f"others own {what}"
    return f"others can write to {what} (chmod go-w ends that)" if status.st_mode & OTHERS and not sticky else ""
