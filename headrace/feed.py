"""The inputs of a step, by what each holds, and texts to feed. Numpy alone: exported models run without torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.ir import Program, Role, Signature

# torch.export gives one sequence a graph of its own, so a row holds two, the second empty if need be.
SEQUENCES = 2
Types = Sequence[Sequence[int] | NDArray[np.int64] | None]


def padded(
    ids: Sequence[Any],
    types: Types = (),
    *,
    offset: int = 0,
    width: int | None = None,
    left: bool = False,
    unseen: Sequence[int] = (),
) -> dict[Role, NDArray[np.int64]]:
    """Sequences a row each: int64 [sequences, width].

    Padding takes the first position, so that no width reaches past a position table, and the first token id: the mask
    alone says what is padding.

    Args:
        types: the token types of each, None for zeros; empty where all are zeros.
        offset: the first position.
        width: of the rows; None takes the longest sequence's.
        left: whether the padding comes first.
        unseen: of each, how many tokens at its end none attends to, below zero at its beginning; empty where all are.
    """
    width = width or max(map(len, ids))
    tokens, mask, positions, kinds = np.zeros((4, len(ids), width), np.int64)
    counted = np.arange(width)
    for row, own in enumerate(ids):
        place = slice(width - len(own), width) if left else slice(len(own))
        tokens[row, place], mask[row, place], positions[row, place] = own, 1, counted[: len(own)]
        if types and (own_types := types[row]) is not None:
            kinds[row, place] = own_types
        if unseen and unseen[row]:
            mask[row, place][slice(-unseen[row], None) if unseen[row] > 0 else slice(-unseen[row])] = 0
    positions += offset
    return {Role.IDS: tokens, Role.PADDING: mask, Role.POSITIONS: positions, Role.TYPES: kinds}


def packed(
    program: Program, ids: Sequence[Any], types: Types = (), *, width: int | None = None
) -> dict[Role, NDArray[Any]]:  # fmt: skip
    """What a packed program takes of sequences after one another: int64 [1, width], offsets int32 [sequences + 1].

    Filling at the end belongs to no sequence; it takes the first token id and the first position.

    Args:
        types: the token types of each, None for zeros; empty where all are zeros.
        width: of the row; None takes as much as the sequences.
    """
    lengths = np.array([len(one) for one in ids])
    ends = lengths.cumsum()
    total = int(ends[-1])
    offsets = np.empty(max(len(ids), SEQUENCES) + 1, np.int32)
    offsets[0], offsets[1 : len(ids) + 1], offsets[len(ids) + 1 :] = 0, ends, total
    roles = [given.role for given in program.signature.inputs if given.role is not Role.OFFSETS]
    rows = np.zeros((len(roles), 1, width or total), np.int64)
    made: dict[Role, NDArray[Any]] = dict(zip(roles, rows, strict=True))
    np.concatenate(ids, out=made[Role.IDS][0, :total])
    if Role.POSITIONS in made:
        made[Role.POSITIONS][0, :total] = np.arange(total) - (ends - lengths).repeat(lengths)
        made[Role.POSITIONS] += program.facts.positions.offset
    if Role.TYPES in made and any(one is not None for one in types):
        kinds = [np.zeros(len(own), np.int64) if one is None else one for own, one in zip(ids, types, strict=True)]
        made[Role.TYPES][0, :total] = np.concatenate(kinds)
    return made | {Role.OFFSETS: offsets}


class Piece(NamedTuple):
    """What a step of a cached program runs of one sequence.

    Attributes:
        ids: its next tokens.
        context: how many of its tokens came before.
        tables: its blocks in each group of caches, -1 for those that are given back.
        row: of its state.
        wanted: of how many of these tokens, the last ones, an answer is asked for.
        types: their token types, None for zeros.
        length: rows of its encoder.
    """

    ids: NDArray[np.int64]
    context: int = 0
    tables: Sequence[Sequence[int]] = ()
    row: int = 0
    wanted: int = 1
    types: NDArray[np.int64] | None = None
    length: int = 0


def cached(program: Program, pieces: Sequence[Piece]) -> dict[Role, NDArray[Any]]:
    """What a cached program takes of a step, but for the caches. See `headrace.ops.cached` for each.

    Slots and blocks have a first axis for the groups, in the program's order.
    """
    counts = np.array([len(piece.ids) for piece in pieces])
    ends = counts.cumsum()
    given: dict[Role, NDArray[Any]] = {
        Role.IDS: np.concatenate([piece.ids for piece in pieces])[None],
        Role.OFFSETS: np.concatenate([[0], ends]).astype(np.int32),
        Role.CONTEXT: np.array([piece.context for piece in pieces], np.int32),
        Role.ROWS: np.array([piece.row for piece in pieces], np.int32),
        Role.LENGTHS: np.array([piece.length for piece in pieces], np.int32),
        Role.WANTED: np.concatenate(
            [np.arange(end - piece.wanted, end) for end, piece in zip(ends.tolist(), pieces, strict=True)]
        ),
    }
    places = np.arange(ends[-1]) + (given[Role.CONTEXT] - ends + counts).repeat(counts)
    given[Role.POSITIONS] = (places + program.facts.positions.offset)[None]
    given[Role.TYPES] = np.concatenate(
        [np.zeros(len(piece.ids), np.int64) if piece.types is None else piece.types for piece in pieces]
    )[None]
    if program.form.groups:
        given[Role.BLOCKS] = blocks = _tables([piece.tables for piece in pieces])
        size, owner = program.form.block, np.arange(len(pieces)).repeat(counts)
        given[Role.SLOTS] = blocks[:, owner, places // size].astype(np.int64) * size + places % size
    return given


def _tables(tables: Sequence[Sequence[Sequence[int]]]) -> NDArray[np.int32]:
    """The blocks of each sequence in each group as one array, int32 [groups, sequences, most], -1 past the last."""
    groups = list(zip(*tables, strict=True))
    lengths = np.array([list(map(len, group)) for group in groups])
    blocks = np.full((*lengths.shape, lengths.max()), -1, np.int32)
    each = chain.from_iterable(chain.from_iterable(groups))
    blocks[np.arange(blocks.shape[2]) < lengths[..., None]] = np.fromiter(each, np.int32)
    return blocks


def marked(signature: Signature, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids of which the last, as tokenizers put it, and no other is the token that the head looks for, if it does."""
    if signature.marker is None:
        return ids
    made = np.where(ids == signature.marker, (signature.marker + 1) % signature.vocabulary, ids)
    made[-1:] = signature.marker
    return made


def random_ids(signature: Signature, random: np.random.Generator, length: int, first: int = 0) -> NDArray[np.int64]:
    """A text of pseudorandom tokens, none below `first` where the vocabulary has so many."""
    least = min(first, signature.vocabulary - 1)
    return marked(signature, random.integers(least, signature.vocabulary, length, np.int64))
