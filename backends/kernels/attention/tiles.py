"""The tiles of queries that a kernel over packed sequences works through.

A tile is four int32: its rows `[row_begin, row_end)` and the keys that those may see, `[key_begin, key_end)`. It lies
in one sequence, or holds several short ones whole. Sequences are best given longest first: the tiles keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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
    """Tiles of one sequence each, made where `cu_seqlens` lies; as many as there could be, so nothing is waited for.

    Tokens past the last sequence (a bucket's filling) get tiles without keys, which makes their rows zeros.
    """
    begin, stop = cu_seqlens, torch.cat([cu_seqlens[1:], cu_seqlens[-1:]])
    end = torch.cat([cu_seqlens[1:], cu_seqlens.new_full((1,), tokens)])
    counts = (end - begin + rows - 1) // rows
    past = counts.cumsum(0)
    index = torch.arange(tokens // rows + begin.shape[0], device=cu_seqlens.device)
    sequence = torch.searchsorted(past, index, right=True).clamp(max=begin.shape[0] - 1)
    row = begin[sequence] + (index - (past - counts)[sequence]) * rows
    row_end = torch.minimum(row + rows, end[sequence])
    return torch.stack([row, row_end, begin[sequence], stop[sequence]], 1).to(torch.int32)


def merge(lengths: Sequence[int], tokens: int, rows: int) -> list[tuple[int, int, int, int]]:
    """Tiles made on the host: neighbouring sequences that fit in one tile share it.

    It halves the time at 16 tokens a sequence, is even at 64, and costs a tenth on mixed lengths (masks on every row).
    A NaN in one sequence reaches those that share its tile, which `spread` rules out.
    """
    found: list[tuple[int, int, int, int]] = []
    begin = open_from = 0
    for length in lengths:
        end = begin + length
        if end - open_from > rows and begin > open_from:
            found.append((open_from, begin, open_from, begin))
            open_from = begin
        if length > rows:
            found += [(row, min(row + rows, end), begin, end) for row in range(begin, end, rows)]
            open_from = end
        begin = end
    if begin > open_from:
        found.append((open_from, begin, open_from, begin))
    return found + [(row, min(row + rows, tokens), begin, begin) for row in range(begin, tokens, rows)]


def merged(lengths: Sequence[int], tokens: int, rows: int, device: torch.device | str) -> TileList:
    """The `TileList` of `merge`."""
    found = torch.tensor(merge(lengths, tokens, rows), dtype=torch.int32).reshape(-1, 4)
    counts = torch.tensor([*lengths, tokens - sum(lengths)])
    ends = counts.cumsum(0)
    bounds = torch.stack([(ends - counts).repeat_interleave(counts), ends.repeat_interleave(counts)])
    return TileList(found.to(device), rows, bounds.to(device, torch.int32))
