"""What `parity_peers` asks: their own models, each of one module, pooling, prompt, activation or aggregation."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.peers.case import Case
from benchmarks.peers.many import many, one_pass, sparse_rows
from benchmarks.peers.scores import aggregations, scores
from benchmarks.peers.vectors import backbones, modules, poolings, prompts, real

PARTS = (modules, poolings, prompts, scores, sparse_rows, many, one_pass, aggregations, backbones, real)


def cases() -> Iterator[Case]:
    """Every row."""
    for part in PARTS:
        yield from part()
