"""Locks of files and folders between processes, which end with the last process that holds one."""

from __future__ import annotations

import fcntl


def lock(descriptor: int, how: int, otherwise: bool) -> bool:
    """Lock an open file or folder; False where others hold it.

    Args:
        how: of the constants of fcntl.
        otherwise: what to answer where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        return otherwise
    return True
