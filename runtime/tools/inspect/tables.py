"""Rows as aligned columns of text, below 100 characters wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 98
# The last column keeps this much, however wide the others are.
LEAST = 24


def aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """One line a row; the last column wraps below itself.

    Characters that would move a terminal's cursor are shown as what they are.
    """
    plain = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in list(zip(*plain, strict=True))[:-1]]
    start = indent + sum(widths) + 2 * len(widths)
    lines = []
    for row in plain:
        head = " " * indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        first, *others = _wrapped(row[-1], max(LEAST, WIDTH - start)) or [""]
        lines += [(head + first).rstrip(), *(" " * start + line for line in others)]
    return lines


def paragraph(text: str) -> list[str]:
    """Running text, wrapped."""
    return _wrapped(printable(text), WIDTH)


def _wrapped(text: str, width: int) -> list[str]:
    # A path or an option stays in one piece, to be copied.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def printable(text: str) -> str:
    """The text with control characters escaped: names come from files that anybody may have written."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
