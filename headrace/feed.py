"""Made-up arrays for inputs that are not token ids: what tracing, probing and measuring run a model on."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ir import Input

# The axes along which an input's parts follow one another; the others hold what one part is made of.
ALONG = ("samples", "frames", "height")


def draw(given: Input, batch: int, rows: int, seed: int = 0) -> Tensor:
    """Normal noise for a float32 input: fixed axes at their size, the others as large as so many rows need."""
    _, *axes = given.axes
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, *(axis.at(rows) for axis in axes)), generator=generator)


def with_new_end(values: Tensor, given: Input, seed: int = 1) -> Tensor:
    """A copy whose last quarter is drawn anew: of an image the lower strip, else the end of the sequence."""
    end = next(place for place, axis in enumerate(given.axes) if axis.name in ALONG)
    size = values.shape[end]
    kept = size - max(1, size // 4)
    drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    changed = values.clone()
    changed.narrow(end, kept, size - kept).copy_(drawn.narrow(end, kept, size - kept))
    return changed
