"""Blocks and rows: none is lost, none is given twice, and what is known is what it says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.ir import Cache, CacheGroup, CacheKind, Layout, MaskKind
from headrace.runtime.cache.store import SPARE, STATES, CacheStore, Held
from tests.synthetic import facts

BLOCK = 4
WIDTH = 8 * 4
FULL, WINDOW = CacheGroup("full", MaskKind.CAUSAL), CacheGroup("window_6", MaskKind.CAUSAL, 5)
PAGED = [
    Cache(f"k_{order}", CacheKind.PAGED, (1, 8), "float32", group.name) for order, group in enumerate((FULL, WINDOW))
]
STATE = Cache("state_0", CacheKind.ROW, (8,), "float32")


class Memory:
    """Arrays of numpy."""

    def cache_bytes(self) -> int:
        return 1 << 20

    def resized(self, array: np.ndarray | None, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        made = np.zeros(shape, dtype)
        if array is not None:
            made[: len(array)] = array
        return made


def store(*caches: Cache, limit: int = 1 << 20, prefixes: bool = True) -> CacheStore:
    groups = tuple(group for group in (FULL, WINDOW) if any(cache.group == group.name for cache in caches))
    program = facts().with_(layout=Layout.CACHED, caches=caches, groups=groups, block=BLOCK)
    return CacheStore(program, Memory(), limit, prefixes)


def write(kept: CacheStore, held: Held, tokens: list[int]) -> None:
    """What a step does: put each new token where it belongs, and what was seen so far into the state."""
    for place in range(held.count, len(tokens)):
        for cache, table in zip(PAGED, held.tables, strict=False):
            kept.arrays[cache.name][table[place // BLOCK], place % BLOCK] = tokens[place]
    if held.row is not None:
        kept.arrays["state_0"][held.row] = sum(tokens)


def check(kept: CacheStore, held: Held, tokens: list[int]) -> None:
    """All that a later step may read is there."""
    for cache, group, table in zip(PAGED, kept.form.groups, held.tables, strict=False):
        for place in range(group.first_key(held.count), held.count):
            assert (kept.arrays[cache.name][table[place // BLOCK], place % BLOCK] == tokens[place]).all()
    if held.row is not None and held.count:
        assert (kept.arrays["state_0"][held.row] == sum(tokens[: held.count])).all()


@pytest.mark.parametrize("caches", [PAGED, [*PAGED, STATE], [STATE]], ids=["paged", "both", "states"])
@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_joins_and_leaves_lose_nothing(caches: list[Cache], seed: int) -> None:
    kept, chance = store(*caches, limit=220 * BLOCK * WIDTH), random.Random(seed)
    texts: list[tuple[Held, list[int]]] = []
    families = [[chance.randrange(50) for _ in range(60)] for _ in range(5)]
    joined = known = 0
    while joined < 5_000:
        if chance.random() < 0.5:
            tokens = [*chance.choice(families)[: chance.randint(1, 60)], chance.randrange(50)]
            held = kept.admit(tokens)
            if held is not None:
                joined += 1
                known += bool(held.count)
                check(kept, held, tokens)
                texts.append((held, tokens))
        elif texts:
            held, tokens = texts[place := chance.randrange(len(texts))]
            count = min(chance.randint(1, 20), len(tokens) - held.count)
            if count == 0 or chance.random() < 0.2 or not kept.reserve(held, count):
                kept.release(held)
                texts.pop(place)
                continue
            write(kept, held, tokens[: held.count + count])
            kept.commit(held, tokens[: held.count + count], count)
            check(kept, held, tokens)
    assert known > 100
    for held, _ in texts:
        kept.release(held)
    assert kept.used() == 0
    assert all(pool.free == pool.count - SPARE * (name == STATES) for name, pool in kept.pools.items())


def test_a_text_runs_its_last_token_though_all_of_it_is_known() -> None:
    kept, tokens = store(*PAGED), list(range(2 * BLOCK))
    first = kept.admit(tokens)
    kept.reserve(first, len(tokens))
    kept.commit(first, tokens, len(tokens))
    assert kept.admit(tokens).count == BLOCK


def test_blocks_that_no_query_sees_are_given_back() -> None:
    kept, tokens = store(*PAGED), list(range(64))
    held = kept.admit(tokens)
    for place in range(64):
        kept.reserve(held, 1)
        kept.commit(held, tokens[: place + 1], 1)
    full, window = held.tables
    assert min(full) >= 0
    assert sum(block >= 0 for block in window) == 2


def test_a_state_is_copied_for_who_goes_on_from_it() -> None:
    kept, tokens = store(STATE), list(range(2 * BLOCK + 1))
    first = kept.admit(tokens)
    write(kept, first, tokens[: 2 * BLOCK])
    kept.commit(first, tokens[: 2 * BLOCK], 2 * BLOCK)
    second = kept.admit(tokens)
    assert second.count == 2 * BLOCK
    assert second.row != first.row
    check(kept, second, tokens)


@pytest.mark.parametrize("count", [1, BLOCK, 2 * BLOCK + 3, 15])
def test_sequences_that_part_share_what_is_whole(count: int) -> None:
    """One writes on, and the other reads what was there; both are released in either order."""
    kept, tokens = store(*PAGED, STATE), list(range(40))
    first = kept.admit(tokens)
    kept.reserve(first, count)
    write(kept, first, tokens[:count])
    kept.commit(first, tokens[:count], count)
    second = kept.fork(first)
    full = count // BLOCK
    assert first.tables[0][:full] == second.tables[0][:full]
    assert not set(first.tables[0][full:]) & set(second.tables[0][full:])
    for held, own in ((first, [*tokens[:count], 7, 8]), (second, [*tokens[:count], 9])):
        kept.reserve(held, len(own) - count)
        write(kept, held, own)
        kept.commit(held, own, len(own) - count)
    check(kept, first, [*tokens[:count], 7, 8])
    check(kept, second, [*tokens[:count], 9])
    kept.release(first)
    check(kept, second, [*tokens[:count], 9])
    kept.release(second)
    assert kept.used() == 0


def test_nothing_parts_where_there_is_no_room() -> None:
    kept = store(PAGED[0], limit=2 * BLOCK * WIDTH)
    held = kept.admit([1])
    kept.reserve(held, 2 * BLOCK - 1)
    kept.commit(held, list(range(2 * BLOCK - 1)), 2 * BLOCK - 1)
    used = kept.used()
    assert kept.fork(held) is None
    assert kept.used() == used


def test_paged_caches_take_less_than_padded_ones() -> None:
    """64 texts of 10 to 1,000 tokens: a static cache has the longest one's length for each."""
    kept, chance = store(PAGED[0], limit=1 << 24), random.Random(0)
    lengths = [chance.randint(10, 1000) for _ in range(64)]
    for length in lengths:
        assert kept.reserve(kept.admit([1]), length)
    assert kept.used() / (64 * 1000 * WIDTH) < 0.6


def test_nothing_is_known_where_prefixes_are_not_kept() -> None:
    kept, tokens = store(*PAGED, prefixes=False), list(range(20))
    first = kept.admit(tokens)
    kept.reserve(first, 20)
    kept.commit(first, tokens, 20)
    assert kept.admit(tokens).count == 0


def test_caches_grow_to_their_limit_and_no_further() -> None:
    kept = store(PAGED[0], limit=100 * BLOCK * WIDTH)
    held = kept.admit([1])
    assert kept.bytes == 64 * BLOCK * WIDTH
    assert kept.reserve(held, 100 * BLOCK)
    assert kept.bytes == 100 * BLOCK * WIDTH
    assert not kept.reserve(held, 100 * BLOCK + 1)
    assert kept.capacity() == 100 * BLOCK
