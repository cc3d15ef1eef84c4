"""A file for libraries that end the process where writing fails."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Sink(io.FileIO):
    """Takes everything, and keeps the first error to itself.

    torch's writer of archives closes them in a destructor, in which an error ends the process: a full disk, a quota,
    a file that may not grow.
    """

    def __init__(self, path: Path) -> None:
        """Begin a new file."""
        super().__init__(path, "w")
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it, or nothing more once that has failed."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self.failed is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failed = error
        return size


@contextmanager
def sink(path: Path) -> Iterator[Sink]:
    """A file to hand to such a library.

    Raises:
        OSError: something could not be written; raised once the library is done.
    """
    with Sink(path) as file:
        yield file
    if file.failed is not None:
        raise file.failed
