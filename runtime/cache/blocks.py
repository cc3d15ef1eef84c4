"""Blocks of one group of paged caches: who holds each, and which hold the tokens of a known prefix."""

from __future__ import annotations

from collections import OrderedDict

NOWHERE = -1


class BlockPool:
    """Blocks by number. One that nobody holds is given out again, the longest unused first.

    A block that was published stays what it is until then: who comes with the same prefix takes it as it lies.
    """

    def __init__(self, spare: int = 0) -> None:
        """Begin without blocks. The first `spare` are never given out: what fills a step up may name them."""
        self.count, self._spare = 0, spare
        self._free: OrderedDict[int, None] = OrderedDict()
        self._holders: dict[int, int] = {}
        self._blocks: dict[int, int] = {}  # of a prefix
        self._prefixes: dict[int, int] = {}  # of a block

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """How many somebody holds."""
        return len(self._holders)

    def grow(self, count: int) -> None:
        """Have so many blocks, no fewer than before."""
        fresh = dict.fromkeys(range(max(self.count, self._spare), count))
        for block in fresh:
            self._free[block] = None
            self._free.move_to_end(block, last=False)  # what holds no prefix goes first
        self.count = count

    def take(self) -> int:
        """A block for a new holder, with nothing in it that is known.

        Raises:
            KeyError: none is free.
        """
        block, _ = self._free.popitem(last=False)
        if (prefix := self._prefixes.pop(block, None)) is not None:
            del self._blocks[prefix]
        self._holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One holder more of a block that is held."""
        self._holders[block] += 1

    def give(self, block: int) -> None:
        """One holder less."""
        self._holders[block] -= 1
        if not self._holders[block]:
            del self._holders[block]
            self._free[block] = None
            if block not in self._prefixes:
                self._free.move_to_end(block, last=False)

    def publish(self, block: int, prefix: int) -> None:
        """Say that a block holds the last tokens of a prefix; the first block that does stays the one."""
        if prefix not in self._blocks and block not in self._prefixes:
            self._blocks[prefix], self._prefixes[block] = block, prefix

    def find(self, prefix: int) -> int | None:
        """The block that holds the last tokens of a prefix."""
        return self._blocks.get(prefix)

    def share(self, prefix: int) -> int:
        """`find` for one more holder."""
        block = self._blocks[prefix]
        self._free.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1
        return block
