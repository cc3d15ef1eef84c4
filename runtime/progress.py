"""Progress on stderr or in a notebook, for work that turns out to take longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO, cast

from headrace.runtime.text.validate import require_choice
from headrace.utils.stderr import Stderr

PATIENCE = 2.0


class Bar:
    """A line that shows what is going on; drawn from the third second on."""

    def __init__(self, what: str, total: int | None) -> None:
        """`total` is the number of things to do, None for work of unknown size."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        counted = (BarColumn(), MofNCompleteColumn()) if total else ()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(file=cast(TextIO, Stderr())), transient=True)
        self._task = self._progress.add_task(what, total=total)
        self._timer = threading.Timer(PATIENCE, self._progress.start)
        self._timer.daemon = True
        self._timer.start()

    def say(self, what: str) -> None:
        """Name the step that begins."""
        self._progress.update(self._task, description=what)

    def advance(self, count: int) -> None:
        """Some more of the total is done."""
        self._progress.advance(self._task, count)

    def close(self) -> None:
        """Take the line away, if it was drawn."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._progress.live.is_started:
            self._progress.stop()


class Nothing:
    """What shows nothing, and loads nothing to show it with."""

    def say(self, what: str) -> None:
        """As `Bar.say`."""

    def advance(self, count: int) -> None:
        """As `Bar.advance`."""

    def close(self) -> None:
        """As `Bar.close`."""


def seen() -> bool:
    """Whether somebody sees a bar: on a terminal, or in a notebook that can draw one (rich does by ipywidgets)."""
    if Stderr().isatty():
        return True
    if "ipykernel" not in sys.modules and "google.colab" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter and find_spec("ipywidgets") is not None


@contextmanager
def bar(what: str, total: int | None = None, shown: bool | None = None) -> Iterator[Bar | Nothing]:
    """Show a bar while the block runs: always, never, or (None) where it is seen.

    Raises:
        InputError: `shown` is none of True, False and None.
    """
    require_choice("progress", shown)
    line = Bar(what, total) if (seen() if shown is None else shown) else Nothing()
    try:
        yield line
    finally:
        line.close()
