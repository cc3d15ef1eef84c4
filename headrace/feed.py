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
) -> dict[Role, NDArray[np.int64]]:
    """Sequences a row each, as `pad` lays them.

    Args:
        types: the token types of each, None for zeros; empty where all are zeros.
    """
    lengths = _lengths(ids)
    return pad(_joined(ids), lengths, _types(types, lengths), offset=offset, width=width, left=left)


def pad(
    ids: NDArray[Any],
    lengths: NDArray[np.int64],
    types: NDArray[Any] | None = None,
    *,
    offset: int = 0,
    width: int | None = None,
    left: bool = False,
    unseen: NDArray[np.int64] | None = None,
) -> dict[Role, NDArray[np.int64]]:
    """Sequences a row each: int64 [sequences, width].

    Padding takes the first position, so that no width reaches past a position table, and the first token id: the mask
    alone says what is padding.

    Args:
        ids: of one sequence after another, [tokens].
        lengths: of the sequences.
        types: the token types, [tokens]; None for zeros.
        offset: the first position.
        width: of the rows; None takes the longest sequence's.
        left: whether the padding comes first.
        unseen: of each, how many tokens at its end none attends to, below zero at its beginning; None where all are.
    """
    width = width or int(lengths.max())
    # The place in its sequence of what stands in each column.
    place = np.arange(width) - (width - lengths[:, None] if left else 0)
    inside = (place >= 0) & (place < lengths[:, None])
    tokens, mask, positions, kinds = np.zeros((4, len(lengths), width), np.int64)
    tokens[inside] = ids
    np.multiply(place, inside, out=positions)
    positions += offset
    if types is not None:
        kinds[inside] = types
    if unseen is not None:
        hidden = unseen[:, None]
        inside &= (place < lengths[:, None] - hidden.clip(min=0)) & (place >= -hidden.clip(max=0))
    mask[:] = inside
    return {Role.IDS: tokens, Role.PADDING: mask, Role.POSITIONS: positions, Role.TYPES: kinds}


def packed(
    program: Program, ids: Sequence[Any], types: Types = (), *, width: int | None = None
) -> dict[Role, NDArray[Any]]:  # fmt: skip
    """Sequences after one another, as `pack` lays them.

    Args:
        types: the token types of each, None for zeros; empty where all are zeros.
    """
    lengths = _lengths(ids)
    return pack(program, _joined(ids), lengths, _types(types, lengths), width=width)


def pack(
    program: Program,
    ids: NDArray[Any],
    lengths: NDArray[np.int64],
    types: NDArray[Any] | None = None,
    *,
    width: int | None = None,
) -> dict[Role, NDArray[Any]]:
    """What a packed program takes of sequences after one another: int64 [1, width], offsets int32 [sequences + 1].

    Filling at the end belongs to no sequence; it takes the first token id and the first position.

    Args:
        ids: of one sequence after another, [tokens].
        lengths: of the sequences.
        types: the token types, [tokens]; None for zeros.
        width: of the row; None takes as much as the sequences.
    """
    ends, total = lengths.cumsum(), len(ids)
    offsets = np.empty(max(len(lengths), SEQUENCES) + 1, np.int32)
    offsets[0], offsets[1 : len(lengths) + 1], offsets[len(lengths) + 1 :] = 0, ends, total
    roles = [given.role for given in program.signature.inputs if given.role is not Role.OFFSETS]
    rows = np.zeros((len(roles), 1, width or total), np.int64)
    made: dict[Role, NDArray[Any]] = dict(zip(roles, rows, strict=True))
    made[Role.IDS][0, :total] = ids
    if Role.POSITIONS in made:
        first = program.facts.positions.offset
        begins = (ends - lengths).repeat(lengths) if len(lengths) > 1 else 0
        np.subtract(np.arange(first, first + total), begins, out=made[Role.POSITIONS][0, :total])
        made[Role.POSITIONS][0, total:] = first
    if Role.TYPES in made and types is not None:
        made[Role.TYPES][0, :total] = types
    return made | {Role.OFFSETS: offsets}


def _lengths(ids: Sequence[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, ids), np.int64, len(ids))


def _joined(ids: Sequence[Any]) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(one, np.int64) for one in ids])


def _types(types: Types, lengths: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if all(one is None for one in types):
        return None
    pairs = zip(types, lengths, strict=True)
    return _joined([np.zeros(length, np.int64) if one is None else one for one, length in pairs])


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
