"""What a forked child must not take over from its parent: locks that threads hold there, and threads that work there.

Of all threads, the child has the one that forked. `os.fork` knows nothing of what the others were at.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar
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


class OfEachProcess(Generic[T]):
    """What works by threads and locks of its library's own: a forked child makes another when it first asks for it.

    The parent's stays in the child's memory to its end: to take it down would wait for threads that are not there.

    Attributes:
        made: that of this process, None where none was asked for.
    """

    def __init__(self, make: Callable[[], T], made: T | None = None) -> None:
        """`make` must give the same in a child; `made` is that of this process, if there is one."""
        self._make, self.made = make, made
        self._guard = Guard()
        _of_processes.add(self)

    def __call__(self) -> T:
        """That of this process."""
        with self._guard.lock:
            if self.made is None:
                self.made = self._make()
            return self.made

    def leave(self) -> None:
        """In a child, have none yet."""
        if self.made is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.made))  # no end of the interpreter deletes it either
            self.made = None


_guards = WeakSet[Guard]()
_of_processes = WeakSet[OfEachProcess[Any]]()
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
    for made in list(_of_processes):
        made.leave()
    _settled.clear()
    _afresh.clear()
    _left.clear()
    _left.add(threading.get_ident())


os.register_at_fork(before=_settle, after_in_parent=_release, after_in_child=_begin)
