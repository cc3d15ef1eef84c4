"""Prefixes by their tokens: a number for each, block by block. Equal tokens are compared, not their hashes."""

from __future__ import annotations

import itertools
from collections import OrderedDict

# Prefixes that are remembered at most. One that is forgotten is computed again.
REMEMBERED = 1 << 16
NOTHING = 0


class Prefixes:
    """Numbers of prefixes. A prefix is the number of the one a block shorter and that block's tokens."""

    def __init__(self) -> None:
        """Know none but the empty one."""
        self._known: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._numbers = itertools.count(NOTHING + 1)

    def number(self, before: int, tokens: bytes) -> int:
        """The number of a prefix, a new one where it is not known."""
        key = (before, tokens)
        if key not in self._known:
            self._known[key] = next(self._numbers)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def find(self, before: int, tokens: bytes) -> int | None:
        """The number of a prefix, None where it is not known."""
        return self._known.get((before, tokens))
