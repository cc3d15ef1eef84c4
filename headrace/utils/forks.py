"""What a forked child must not take over from its parent: locks that threads hold there, and threads that wait there.

Of all threads, the child has the one that forked. `os.fork` knows nothing of what the others were at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """A lock, which its thread may take again: `with guard.lock`. A forked child has it free, whoever held it.

    Attributes:
        lock: the one of this process; read it anew each time.
        settles: whether a fork waits for it, so that what it guards is between two uses in the child.
    """

    def __init__(self, settles: bool = False) -> None:
        """Begin with a free one."""
        self.lock: Any = threading.RLock()
        self.settles = settles
        _guards.add(self)


_guards = WeakSet[Guard]()
_settled: list[Any] = []  # the locks that a fork under way holds
_left: set[int] = set()  # in a child, the thread that forked
_afresh: list[ThreadPoolExecutor] = []  # in a child, a thread that began there, once one was needed


def on_living_threads(work: Callable[P, T]) -> Callable[P, T]:
    """The same for what computes on several threads, run where the library's own threads are alive.

    OpenMP keeps those of a thread with it. The one that forked has none left in the child, and would wait for them.
    """

    @wraps(work)
    def moved(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.get_ident() not in _left:
            return work(*args, **kwargs)
        if not _afresh:
            _afresh.append(ThreadPoolExecutor(1))
        return _afresh[0].submit(work, *args, **kwargs).result()

    return moved


def _settle() -> None:
    for guard in list(_guards):
        if guard.settles:
            guard.lock.acquire()
            _settled.append(guard.lock)


def _release() -> None:
    while _settled:
        _settled.pop().release()


def _begin() -> None:
    # The thread that forked may be inside of a guard: it goes on to release the lock that it took.
    for guard in list(_guards):
        guard.lock = threading.RLock()
    _settled.clear()
    _afresh.clear()
    _left.clear()
    _left.add(threading.get_ident())


os.register_at_fork(before=_settle, after_in_parent=_release, after_in_child=_begin)
