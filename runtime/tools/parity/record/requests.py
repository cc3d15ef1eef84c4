"""The requests of a bundle: ragged, one of a single token, one past every window, both token types in each."""

from __future__ import annotations

import numpy as np

from headrace import feed
from headrace.ir import Program, Role
from headrace.runtime.text.encoded import Encoded

# The longest request has so many tokens where no window asks for more, and at most so many where one does.
LONG, LONGEST = 24, 1024
# Vocabularies begin with what pads, begins and ends a text.
FIRST = 3


def draw(program: Program, seed: int = 0) -> list[Encoded]:
    """Random token ids for a program, the same for the same program and seed."""
    generator = np.random.default_rng(seed)
    return [_request(program, generator, length) for length in _lengths(program)]


def _lengths(program: Program) -> tuple[int, ...]:
    reach = max((side for spec in program.nodes.attention for side in spec.window), default=0)
    longest = min(max(LONG, 2 * reach + FIRST), LONGEST, program.facts.limits.length or LONGEST)
    return tuple(max(1, length) for length in (longest, 1, longest * 2 // 3, longest // 3 + 1, min(5, longest), 2))


def _request(program: Program, generator: np.random.Generator, length: int) -> Encoded:
    ids = feed.random_ids(program.signature, generator, length, FIRST)
    typed = program.signature.has(Role.TYPES) and (program.signature.token_types or 0) > 1
    types = (np.arange(length) >= length // 2).astype(np.int64) if typed else None
    return Encoded(ids, types)
