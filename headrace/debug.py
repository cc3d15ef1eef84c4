"""The one debug switch: HEADRACE_DEBUG=0..4.

1 names the stages and what each took, 3 adds the IR after each pass, 4 the generated code's place.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.utils.stderr import Stderr

STAGES, PROGRAMS, CODE = 1, 3, 4


def level() -> int:
    """The value of HEADRACE_DEBUG, 0 where it is unset or no number."""
    value = os.environ.get("HEADRACE_DEBUG", "0")
    return int(value) if value.isdecimal() else 0


def say(at: int, text: str) -> None:
    """Write `text` to stderr where the switch stands at `at` or above."""
    if level() >= at:
        Stderr().write(f"[headrace] {text}\n")


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name a stage as it begins, and say what it took by the clock, and of the processor's time."""
    say(STAGES, name)
    started, worked = time.perf_counter(), _worked()
    yield
    say(STAGES, f"{name}: {time.perf_counter() - started:.3f} s, {_worked() - worked:.3f} s of the processor")


def _worked() -> float:
    """Seconds of the processor that this process and those that it has waited for have had."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
