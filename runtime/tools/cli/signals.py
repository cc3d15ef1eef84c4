"""Signals that end the command: each ends it quietly, with the exit code that shells know it by."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds until a signal that was lost is sent anew.
AGAIN = 0.05
IMPORTS = "<frozen importlib._bootstrap>"
# A progress bar hides it.
SHOW_CURSOR = b"\x1b[?25h\n"


class Stopped(KeyboardInterrupt):
    """A signal came. KeyboardInterrupt itself, where it passes through `exec`, has Python end by SIGINT at its end."""


class Stopping:
    """While it is entered, a signal raises `Stopped`, so that what is half written is taken away."""

    def __init__(self) -> None:
        """No signal has come."""
        self.number: int | None = None
        self._before: dict[int, Any] = {}
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> Stopping:
        """Listen for each signal that the caller has not told us to ignore; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            heeded = (number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
            self._before = {number: signal.signal(number, self._stop) for number in heeded}
            sys.unraisablehook = self._lost
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything as it was."""
        for number, before in self._before.items():
            signal.signal(number, before)
        sys.unraisablehook = self._unraisable

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if _imports(frame):
            _exit(128 + number)
        raise Stopped

    def _lost(self, found: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised in a destructor or a weak reference's callback: the signal is sent anew."""
        if self.number is None:
            self._unraisable(found)
        elif isinstance(found.exc_value, Stopped):
            main = threading.main_thread().ident
            threading.Timer(AGAIN, signal.pthread_kill, (main, self.number)).start()


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    return frame is not None


def _exit(code: int) -> None:
    """Leave at once: to raise amid an import aborts where C++ waits for it, and half-imported libraries go wrong."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
    os._exit(code)


def run(command: Callable[[], int]) -> int:
    """Run a command; where a signal came, 128 and its number is the exit code, whatever became of the exception.

    A library that is interrupted amid its import may make another error of it.
    """
    with Stopping() as stopping:
        try:
            code = command()
        except BaseException:
            if stopping.number is None:
                raise
        return code if stopping.number is None else 128 + stopping.number


def end_at_once() -> None:
    """Let signals end the process from here on, in which Python has only to shut down."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
