"""The caches of one cached program: arrays that grow, and who holds which part of them. Touches no tensor's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from headrace.backends.interface import Memory
from headrace.ir import CROSS, DTYPE_BYTES, Cache, CacheGroup, CacheKind, Program
from headrace.ir.cache import cross_parts
from headrace.runtime.cache.blocks import NOWHERE, BlockPool
from headrace.runtime.cache.prefixes import NOTHING, Prefixes

# Blocks, and rows of states, that are made at first.
FIRST_BLOCKS, FIRST_ROWS = 64, 8
STATES = "states"
# Rows that are nobody's, the first: a sequence that fills a step up has such a one.
SPARE = 1


@dataclass
class Held:
    """What one sequence holds.

    Attributes:
        count: its tokens that the caches hold.
        tables: its blocks in each group, in the program's order.
        length: the rows of its encoder.
        row: of its state, None where the program has none.
        prefix: the number of its whole blocks, as far as they are published.
    """

    count: int = 0
    tables: list[list[int]] = field(default_factory=list)
    row: int | None = None
    length: int = 0
    prefix: int = NOTHING
    published: int = 0


class CacheStore:
    """Blocks and rows for sequences. What a sequence leaves serves another that begins with the same tokens."""

    def __init__(self, program: Program, memory: Memory, limit: int, prefixes: bool = True) -> None:
        """Make nothing yet.

        Args:
            limit: bytes of all caches at most.
            prefixes: whether what a sequence left is found again.
        """
        self.form, self._memory, self._limit, self._reuse = program.form, memory, limit, prefixes
        self.arrays: dict[str, Any] = {}
        self._prefixes = Prefixes()
        self._grown = [(place, group) for place, group in enumerate(self.form.groups) if group != CROSS]
        self.pools = {group.name: BlockPool() for group in self.form.groups}
        self._of = {name: [one for one in self.form.caches if one.group == name] for name in self.pools}
        states = [one for one in self.form.caches if one.kind is CacheKind.ROW]
        self._rows = BlockPool(SPARE) if states else None
        if self._rows is not None:
            self.pools[STATES], self._of[STATES] = self._rows, states
        # Under a small limit as many of each: one pool that took all would leave the others nothing.
        most = limit // sum(map(self._each, self.pools))
        for name in self.pools:
            self._grow(name, min(most, FIRST_ROWS) + SPARE if name == STATES else min(most, FIRST_BLOCKS))

    @property
    def bytes(self) -> int:
        """What the arrays take."""
        return sum(self._each(name) * pool.count for name, pool in self.pools.items())

    def used(self) -> int:
        """The bytes that sequences hold."""
        return sum(self._each(name) * pool.held for name, pool in self.pools.items())

    def capacity(self) -> int | None:
        """Tokens of the longest sequence that fits when nothing else is there, None where none is too long."""
        whole = [group.name for group in self.form.groups if group.left < 0 and group != CROSS]
        each = sum(self._each(name) for name in whole)
        fixed = sum(self._each(name) * pool.count for name, pool in self.pools.items() if name not in whole)
        return max(0, self._limit - fixed) // each * self.form.block if each else None

    def admit(self, tokens: Sequence[int]) -> Held | None:
        """Room for a sequence, with the longest prefix of it that is known; at least its last token is left to run.

        Returns:
            None where no row is left.
        """
        held = Held(tables=[[] for _ in self.form.groups])
        if self._rows is not None:
            if not self._room(STATES, 1):
                return None
            held.row = self._rows.take()
        if self._reuse:
            self._find(held, tokens)
        return held

    def _find(self, held: Held, tokens: Sequence[int]) -> None:
        block, number, found = self.form.block, NOTHING, list[int]()
        for end in range(block, len(tokens), block):
            known = self._prefixes.find(number, _key(tokens, end - block, end))
            if known is None:
                break
            found.append(number := known)
        while found and not self._whole(found):
            found.pop()
        if not found:
            return
        held.count, held.prefix, held.published = len(found) * block, found[-1], len(found)
        for table, group in self._growing(held):
            first = group.first_key(held.count) // block
            table.extend([NOWHERE] * first + [self.pools[group.name].share(number) for number in found[first:]])
        if self._rows is not None:
            row = self._rows.find(found[-1])
            for cache in self._of[STATES]:
                self.arrays[cache.name][held.row] = self.arrays[cache.name][row]

    def _whole(self, found: list[int]) -> bool:
        """Whether all that is read after a prefix is still there."""
        count = len(found) * self.form.block
        if self._rows is not None and self._rows.find(found[-1]) is None:
            return False
        return all(
            self.pools[group.name].find(number) is not None
            for _, group in self._growing(Held(tables=[[]] * len(self.form.groups)))
            for number in found[group.first_key(count) // self.form.block :]
        )

    def reserve(self, held: Held, count: int) -> bool:
        """Blocks for so many more tokens, or none: whether they are there."""
        need = -(-(held.count + count) // self.form.block)
        growing = [one for one in self._growing(held) if len(one[0]) < need]
        if not all(self._room(group.name, need - len(table)) for table, group in growing):
            return False
        for table, group in growing:
            table.extend(self.pools[group.name].take() for _ in range(need - len(table)))
        return True

    def write_cross(self, held: Held, rows: Any) -> bool:
        """Keep what an encoder made of a sequence's text, [S, W] on the target: whether there is room for it."""
        table, size = held.tables[self.form.groups.index(CROSS)], self.form.block
        need = -(-len(rows) // size)
        if not self._room(CROSS.name, need):
            return False
        table.extend(self.pools[CROSS.name].take() for _ in range(need))
        held.length = len(rows)
        for name, part in cross_parts(self.form.caches, rows):
            for place, block in enumerate(table):
                own = part[place * size : (place + 1) * size]
                self.arrays[name][block, : len(own)] = own
        return True

    def _growing(self, held: Held) -> list[tuple[list[int], CacheGroup]]:
        """A sequence's tables that grow with its tokens, each with its group."""
        return [(held.tables[place], group) for place, group in self._grown]

    def _bounded(self, held: Held) -> list[tuple[list[int], CacheGroup]]:
        """Those of them whose first blocks are given back, each with its group."""
        return [(held.tables[place], group) for place, group in self._grown if group.left >= 0]

    def commit(self, held: Held, tokens: Sequence[int], count: int) -> None:
        """So many more tokens are in the caches: publish whole blocks, give back what nothing reads again.

        Args:
            tokens: of the sequence, all that the caches hold then.
        """
        before, held.count = held.count, held.count + count
        if held.count // self.form.block > before // self.form.block and self._reuse:
            self._publish(held, tokens)
        for table, group in self._bounded(held):
            for place in range(group.first_key(held.count) // self.form.block):
                if table[place] != NOWHERE:
                    self.pools[group.name].give(table[place])
                    table[place] = NOWHERE

    def _publish(self, held: Held, tokens: Sequence[int]) -> None:
        block = self.form.block
        for place in range(held.published, held.count // block):
            held.prefix = self._prefixes.number(held.prefix, _key(tokens, place * block, (place + 1) * block))
            held.published = place + 1
            for table, group in self._growing(held):
                if table[place] != NOWHERE:
                    self.pools[group.name].publish(table[place], held.prefix)
        if self._rows is not None and held.count == held.published * block and self._rows.find(held.prefix) is None:
            self._snapshot(held)

    def _snapshot(self, held: Held) -> None:
        """Keep the state at a block's end, where a row is free for it."""
        assert self._rows is not None
        if self._rows.free:
            row = self._rows.take()
            for cache in self._of[STATES]:
                self.arrays[cache.name][row] = self.arrays[cache.name][held.row]
            self._rows.publish(row, held.prefix)
            self._rows.give(row)

    def fork(self, held: Held) -> Held | None:
        """The same for another sequence: whole blocks are shared, the state and what is not full are copied.

        Returns:
            None where there is no room for the copies.
        """
        whole = held.count // self.form.block
        partly = [group.name for table, group in self._growing(held) if len(table) > whole]
        if not all(self._room(name, 1) for name in (*partly, *([STATES] if held.row is not None else []))):
            return None
        tables = []
        for table, group in zip(held.tables, self.form.groups, strict=True):
            shared = len(table) if group == CROSS else whole
            tables.append([self._forked(block, group.name, place < shared) for place, block in enumerate(table)])
        row = None if held.row is None else self._forked(held.row, STATES, shared=False)
        return replace(held, tables=tables, row=row)

    def _forked(self, place: int, name: str, shared: bool) -> int:
        """One more holder of a block or a row, or a copy of it."""
        if place == NOWHERE:
            return place
        if shared:
            self.pools[name].hold(place)
            return place
        made = self.pools[name].take()
        for cache in self._of[name]:
            self.arrays[cache.name][made] = self.arrays[cache.name][place]
        return made

    def release(self, held: Held) -> None:
        """Give back all that a sequence holds."""
        for table, group in zip(held.tables, self.form.groups, strict=True):
            for block in reversed(table):  # a prefix outlives what follows it
                if block != NOWHERE:
                    self.pools[group.name].give(block)
        if self._rows is not None and held.row is not None:
            self._rows.give(held.row)
        held.tables, held.row, held.count = [], None, 0

    def _room(self, name: str, more: int) -> bool:
        pool = self.pools[name]
        if more > pool.free:
            self._grow(name, max(2 * pool.count, pool.count + more))
        return pool.free >= more

    def _grow(self, name: str, count: int) -> None:
        pool = self.pools[name]
        fits = pool.count + max(0, self._limit - self.bytes) // max(1, self._each(name))
        if (count := min(count, fits)) > pool.count:
            for cache in self._of[name]:
                held = self.arrays.get(cache.name)
                self.arrays[cache.name] = self._memory.resized(held, self._shape(cache, count), cache.dtype)
            pool.grow(count)

    def _shape(self, cache: Cache, count: int) -> tuple[int, ...]:
        return (count, *([self.form.block] if cache.kind is CacheKind.PAGED else []), *cache.sizes)

    def _each(self, name: str) -> int:
        """The bytes of a block, or of a row, in all caches of a pool."""
        return sum(prod(self._shape(cache, 1)) * DTYPE_BYTES[cache.dtype] for cache in self._of[name])


def _key(tokens: Sequence[int], begin: int, end: int) -> bytes:
    return np.array(tokens[begin:end], np.int64).tobytes()
