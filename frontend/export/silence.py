"""What torch and transformers write while a model is looked at: it speaks of our looks, not of the user's texts."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TextIO, cast

from headrace import debug

LIBRARIES = ("torch", "transformers")


@contextmanager
def logs_silenced() -> Iterator[None]:
    """Without the libraries' own logs, until the block ends; HEADRACE_DEBUG=4 keeps them."""
    handlers = [] if debug.level() >= debug.CODE else list(_handlers())
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


def _handlers() -> Iterator[logging.Handler]:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in LIBRARIES:
            yield from logger.handlers


@contextmanager
def prints_silenced() -> Iterator[None]:
    """Without what this thread prints on stderr: torch.export prints the graph that it could not finish."""
    if debug.level() >= debug.CODE:
        yield
        return
    with redirect_stderr(cast(TextIO, _Others(sys.stderr))):
        yield


class _Others:
    """A stream that takes nothing from the thread that made it, and is the one given for any other."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
