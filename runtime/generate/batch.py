"""The rows of one step that are sampled, as tensors: what no row asks for is None, and costs the step nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.runtime.generate.row import NONE, Row

# Above it, sorting the whole vocabulary costs about as much as finding the largest.
WIDEST = 1024


@dataclass(frozen=True)
class Entries:
    """A number of some tokens of some rows.

    Attributes:
        rows: int64 [e].
        ids: int64 [e].
        values: float32 [e].
    """

    rows: Tensor
    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class History:
    """The tokens that came before, of the rows that are penalised for them; others have none here.

    Attributes:
        rows: the row of each, int64 [t].
        ids: int64 [t].
        new: 1 for one of the answer, 0 for one of the prompt, float32 [t].
        repetition: float32 [w]; 1 is none.
        presence: float32 [w].
        frequency: float32 [w].
    """

    rows: Tensor
    ids: Tensor
    new: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn. A row of temperature 0 takes the likeliest.

    Attributes:
        temperature: float32 [w].
        seed: int64 [w].
        place: int64 [w].
        top_k: int64 [w], the vocabulary's size for all; None where no row narrows by it or by `top_p`.
        top_p: float64 [w].
        min_p: float64 [w], None where no row narrows by it.
        widest: no row narrows to more than so many, which saves sorting all; None where one may.
    """

    temperature: Tensor
    seed: Tensor
    place: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    widest: int | None

    def part(self, start: int, end: int) -> Draw:
        """Some of the rows."""
        held = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        part: dict[str, Any] = {name: value[start:end] for name, value in held.items()}
        return replace(self, **part)


@dataclass(frozen=True)
class SamplingBatch:
    """What is asked of w rows of logits.

    Attributes:
        draw: None where every row takes the likeliest token.
        biases: what is added to logits.
        history: what penalties count.
        allowed: int32 [w, (V + 31) // 32], a bit a token.
        logprobs: None where no row asks for any, else the most alternatives that one does.
    """

    draw: Draw | None = None
    biases: Entries | None = None
    history: History | None = None
    allowed: Tensor | None = None
    logprobs: int | None = None


def batched(rows: Sequence[Row], vocabulary: int, device: torch.device | str = "cpu") -> SamplingBatch:
    """The rows on a device: one copy for each thing that some row asks for, none for greedy rows without options.

    Args:
        vocabulary: the width of the logits.
    """

    def put(values: Any, kind: Any) -> Tensor:
        made = torch.from_numpy(np.ascontiguousarray(values, kind))
        return made if str(device) == "cpu" else made.pin_memory().to(device, non_blocking=True)

    asked = [row.options.logprobs for row in rows if row.options.logprobs is not None]
    return SamplingBatch(
        draw=None if all(row.options.greedy for row in rows) else _draw(rows, vocabulary, put),
        biases=_biases(rows, put),
        history=_history(rows, vocabulary, put) if any(row.penalised for row in rows) else None,
        allowed=_allowed(rows, vocabulary, put),
        logprobs=max(asked, default=None),
    )


Put = Callable[[Any, Any], Tensor]


def _draw(rows: Sequence[Row], vocabulary: int, put: Put) -> Draw:
    options = [row.options for row in rows]
    kept = [vocabulary if one.greedy or not one.top_k else min(one.top_k, vocabulary) for one in options]
    shares = [1.0 if one.greedy else one.top_p for one in options]
    narrow = min(kept) < vocabulary or min(shares) < 1
    least = [0.0 if one.greedy else one.min_p for one in options]
    # A greedy row's own narrowing is nothing, and does not make the others' wider.
    wide = max(k for k, one in zip(kept, options, strict=True) if not one.greedy)
    return Draw(
        temperature=put([one.temperature for one in options], np.float32),
        seed=put([row.seed for row in rows], np.int64),
        place=put([row.place for row in rows], np.int64),
        top_k=put(kept, np.int64) if narrow else None,
        top_p=put(shares, np.float64) if narrow else None,
        min_p=put(least, np.float64) if any(least) else None,
        widest=wide if wide <= min(WIDEST, vocabulary) else None,
    )


def _biases(rows: Sequence[Row], put: Put) -> Entries | None:
    counts = [len(row.biased) for row in rows]
    if not any(counts):
        return None
    return Entries(
        rows=put(np.repeat(np.arange(len(rows)), counts), np.int64),
        ids=put(np.concatenate([row.biased for row in rows]), np.int64),
        values=put(np.concatenate([row.biases for row in rows]), np.float32),
    )


def _history(rows: Sequence[Row], vocabulary: int, put: Put) -> History:
    parts = [part if row.penalised else NONE for row in rows for part in (row.prompt, row.new)]
    ids = np.concatenate(parts)
    counts = [len(part) for part in parts]
    held = ids < vocabulary  # what the head has no logit for cannot be penalised
    options = [row.options for row in rows]
    return History(
        rows=put(np.repeat(np.arange(len(parts)) // 2, counts)[held], np.int64),
        ids=put(ids[held], np.int64),
        new=put(np.repeat(np.arange(len(parts)) % 2, counts)[held], np.float32),
        repetition=put([one.repetition_penalty for one in options], np.float32),
        presence=put([one.presence_penalty for one in options], np.float32),
        frequency=put([one.frequency_penalty for one in options], np.float32),
    )


def _allowed(rows: Sequence[Row], vocabulary: int, put: Put) -> Tensor | None:
    if all(row.allowed is None for row in rows):
        return None
    every = np.full((vocabulary + 31) // 32, -1, np.int32)
    return put(np.stack([every if row.allowed is None else row.allowed for row in rows]), np.int32)
