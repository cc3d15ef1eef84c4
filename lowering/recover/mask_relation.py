"""Read the relation of positions out of a mask that a model makes itself, by evaluating it.

Such a mask depends on the padding and on sizes alone. It is evaluated on batches without padding, with padding on
either side, and on one long text; only where every value is what a symbolic mask would say is it known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.ir import MaskKind, Window
from headrace.ops.attention import materialise_mask

SHORT = 9
# Rows of a batch: real tokens from the first place to before the second.
ROWS = ((0, SHORT), (4, SHORT), (0, 6), (2, 3))
# A text this long is evaluated to see where a window ends; longer ones are not served where nothing else says it.
LONG = 4096


class Relation(NamedTuple):
    """What a mask says: which positions see each other, and whether it hides the padding."""

    kind: MaskKind
    window: Window
    padded: bool


@dataclass(frozen=True)
class Sample:
    """A mask's values on one batch: `real` bool [B, S], `seen` bool [B, 1, L, S]."""

    real: Tensor
    seen: Tensor


def short_batch(limit: int | None) -> Tensor:
    """Rows with no padding and with padding on either side, none longer than the limit: bool [B, S]."""
    place = torch.arange(min(SHORT, limit or SHORT))
    rows = torch.stack([(begin <= place) & (place < end) for begin, end in ROWS])
    return rows[rows.any(1)]


def read_relation(samples: Iterable[Sample], known: Iterable[tuple[MaskKind, Window]]) -> Relation | None:
    """The relation that gives every value of every sample on rows of real tokens; None where there is none.

    Args:
        known: relations that mask nodes below the mask state; else they are read off the samples.
    """
    samples, found = list(samples), set(known)
    for sample in [] if found else samples:
        if bool(sample.real.all()):
            found.add(_near(sample.seen[0, 0]))
    for kind, window in sorted(found):
        for padded in (True, False):
            if all(_holds(sample, kind, window, padded) for sample in samples):
                return Relation(kind, window, padded)
    return None


def _near(seen: Tensor) -> tuple[MaskKind, Window]:
    """The window that the ends of a whole text show: bool [L, S]."""
    after, before = int(seen[0].sum()) - 1, int(seen[-1].sum()) - 1
    left = -1 if before == seen.shape[1] - 1 else before
    if after <= 0:
        return MaskKind.CAUSAL, Window(left, 0)
    return MaskKind.BIDIRECTIONAL, Window(left, -1 if after == seen.shape[1] - 1 else after)


def _holds(sample: Sample, kind: MaskKind, window: Window, padded: bool) -> bool:
    if sample.seen.shape[-2:] != (sample.real.shape[1], sample.real.shape[1]):
        return False
    batch, length = sample.real.shape
    padding = sample.real if padded else None
    expected = materialise_mask(padding, batch, length, length, 0, 0, kind, window, torch.device("cpu"))
    # Rows of padding reach no answer.
    return bool(((sample.seen == expected) | ~sample.real[:, None, :, None]).all())
