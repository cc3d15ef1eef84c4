"""The one debug switch: HEADRACE_DEBUG=0..4.

1 names the stages, 2 adds the time of each pass, 3 the IR after each pass, 4 the generated code's place.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.utils.stderr import Stderr

STAGES, TIMES, PROGRAMS, CODE = 1, 2, 3, 4


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
    """Name a stage as it begins and, from level 2, time it."""
    say(STAGES, name)
    started = time.perf_counter()
    yield
    say(TIMES, f"{name}: {time.perf_counter() - started:.3f} s")
