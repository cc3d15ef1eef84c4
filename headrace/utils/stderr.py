"""Standard error as it may be: a daemon has none, a logger puts an object of its own in its place."""

import sys
from contextlib import suppress

# What a stream raises that is None or lacks a method, that is closed, or whose other end is gone or full.
LOST = (AttributeError, OSError, ValueError)


class Stderr:
    """`sys.stderr` of this moment as a file to write to. What is said beside the work never ends the work."""

    def __init__(self) -> None:
        """Keep the stream that is there now: one that draws on a terminal puts its own in its place."""
        self._stream = sys.stderr

    @property
    def encoding(self) -> str:
        """Of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        with suppress(*LOST):
            return bool(self._stream.isatty())
        return False

    def write(self, text: str) -> int:
        """Write where something takes it."""
        with suppress(*LOST):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with suppress(*LOST):
            self._stream.flush()
