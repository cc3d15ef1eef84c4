"""The tiles of queries that a kernel over packed sequences works through.

A tile is four int32: its rows `[row_begin, row_end)` and the keys that those may see, `[key_begin, key_end)`. It lies
in one sequence, or holds several short ones whole. Sequences are best given longest first: the tiles keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Bias(StrEnum):
    """What is added to the scaled scores by the distance of query and key alone, so that no [T, T] tensor exists.

    ALIBI: `-slope[head] * |key - query|`; the bias is [Hq], the slopes.
    RELATIVE: `table[head, clamp(key - query, -reach, reach) + reach]`; the bias is [Hq, 2 * reach + 1], rows
        contiguous. T5's and MPNet's buckets are one, since distances past the largest share a bucket.
    """

    NONE = "none"
    ALIBI = "alibi"
    RELATIVE = "relative"


class TileList(NamedTuple):
    """Tiles of at most `rows` rows.

    Attributes:
        tiles: int32 [count, 4]; those with no rows are skipped.
        rows: the most rows that a tile has.
        bounds: int32 [2, tokens], begin and end of each token's sequence, where tiles hold several sequences.
    """

    tiles: Tensor
    rows: int
    bounds: Tensor | None = None


def spread(cu_seqlens: Tensor, tokens: int, rows: int) -> Tensor:
    """Tiles of one sequence each, made where `cu_seqlens` lies; as many as there could be, so nothing is waited for."""
    begin, end = cu_seqlens[:-1], cu_seqlens[1:]
    counts = (end - begin + rows - 1) // rows
    past = counts.cumsum(0)
    index = torch.arange(tokens // rows + begin.shape[0], device=cu_seqlens.device)
    sequence = torch.searchsorted(past, index, right=True).clamp(max=begin.shape[0] - 1)
    begin, end = begin[sequence], end[sequence]
    row = torch.minimum(begin + (index - (past - counts)[sequence]) * rows, end)
    return torch.stack([row, torch.minimum(row + rows, end), begin, end], 1).to(torch.int32)


def merge(lengths: Sequence[int], rows: int) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int]]]:
    """Tiles on the host, neighbouring sequences that fit in one tile together; and the bounds of every token."""
    found: list[tuple[int, int, int, int]] = []
    bounds: list[tuple[int, int]] = []
    begin = open_from = 0
    for length in lengths:
        end = begin + length
        bounds += [(begin, end)] * length
        if end - open_from > rows and begin > open_from:
            found.append((open_from, begin, open_from, begin))
            open_from = begin
        if length > rows:
            found += [(row, min(row + rows, end), begin, end) for row in range(begin, end, rows)]
            open_from = end
        begin = end
    if begin > open_from:
        found.append((open_from, begin, open_from, begin))
    return found, bounds


def merged(lengths: Sequence[int], rows: int, device: torch.device | str) -> TileList:
    """A `TileList` of `merge`."""
    found, bounds = merge(lengths, rows)
    made = torch.tensor(found, dtype=torch.int32).reshape(-1, 4).to(device)
    return TileList(made, rows, torch.tensor(bounds, dtype=torch.int32).reshape(-1, 2).T.contiguous().to(device))
