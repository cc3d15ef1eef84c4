"""Tracing, rewriting, compiling and interpreting: one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from headrace.utils.forks import Guard, on_living_threads

P = ParamSpec("P")
T = TypeVar("T")
_TURN = Guard()


def in_turn(work: Callable[P, T]) -> Callable[P, T]:
    """The same, for which a thread waits until no other does such work.

    torch's tracer, its compiler and its exporter keep what they are at in tables of the whole process, which its eager
    custom operators look into. Two threads at once mix theirs up: models are refused that are sound, and answers fail,
    by errors that speak of neither.
    """

    @on_living_threads
    @wraps(work)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> T:
        with _TURN.lock:
            return work(*args, **kwargs)

    return waiting
