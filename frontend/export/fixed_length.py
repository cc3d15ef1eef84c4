"""Find the line of the model's code that fixes a length: the first that asks of one what not all would answer so."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch

from headrace.compat.torch import asked_of_sizes, size_symbols

# Torch, Python's library, Headrace and code that has no file are no code of the model.
FOREIGN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[2]}/", "<")
LIBRARY = f"{sysconfig.get_path('stdlib')}/"
# Sizes at which an answer is tried. One token comes last: what it alone breaks is how memory is laid out, mostly.
SIZES = (2, 3, 4, 5, 7, 8, 16, 63, 64, 101, 128, 600, 1)


class Line(NamedTuple):
    """A line of the model's code, as people look for it."""

    function: str
    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.function} in {self.file}, line {self.number},"


def fixed_length(export: Callable[[], object], longest: int | None) -> Line | None:
    """Where an export that fails first asks of a length what would be answered otherwise of another.

    Args:
        export: does it once more.
        longest: the longest sequence that the model takes.
    """
    sizes, seen = [size for size in SIZES if size <= (longest or size)], set[Any]()
    found = dict[bool, Line]()  # by whether one token alone breaks the answer

    def note(asked: Any, answer: Any) -> None:
        if asked in seen:
            return
        seen.add(asked)
        broken = next((place for place, size in enumerate(sizes) if not _answers(asked, answer, size)), None)
        if broken is not None and (line := innermost(_callers(sys._getframe(1)))) is not None:
            found.setdefault(sizes[broken] == 1, line)

    with asked_of_sizes(note), suppress(Exception):
        export()
    return found.get(False, found.get(True))


def innermost(frames: Iterator[tuple[FrameType, int]]) -> Line | None:
    """The first of the frames that runs the model's own code."""
    for frame, number in frames:
        if not _foreign(frame.f_code.co_filename):
            return Line(frame.f_code.co_qualname, Path(frame.f_code.co_filename).name, number)
    return None


def passed_by(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames that an error came through, the innermost first."""
    frames = list[tuple[FrameType, int]]()
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    yield from reversed(frames)


def _callers(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _foreign(file: str) -> bool:
    return file.startswith(FOREIGN) or (file.startswith(LIBRARY) and "-packages" not in file)


def _answers(asked: Any, answer: Any, size: int) -> bool:
    """Whether the answer is the same where all sizes are that one; also where that cannot be told."""
    symbols = size_symbols(asked)
    value = asked.subs(dict.fromkeys(symbols, size)) if symbols else None
    if value is None or value.free_symbols:
        return True
    return bool(value == answer)
