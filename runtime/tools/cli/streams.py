"""The three streams that a process begins with, also where its caller has closed some of them."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

from headrace.errors import InputError


class Closed(io.TextIOBase):
    """A standard output that is closed: to write to it is an OSError, as to any file that takes nothing."""


def open_missing() -> None:
    """Put something in the place of what was closed; `sys.stdin` stays None, as Python has it.

    The next file that is opened would take its number, and what libraries in C say on stderr would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or cast(TextIO, Closed())
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays


def require_output() -> None:
    """Refuse a standard output that takes no answers, before they are worked out.

    Raises:
        InputError: it is closed.
    """
    if not sys.stdout.writable():
        raise InputError("Standard output is closed: the answers have nowhere to go. Send them to a file: > FILE.")


def let_go(stream: TextIO) -> None:
    """Send what a stream has yet to write nowhere: Python's own last attempt would wait, or fail and say so."""
    with suppress(OSError, ValueError):  # one that is no file has nothing to wait for
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
