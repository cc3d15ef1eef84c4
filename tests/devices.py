"""Several devices where there is none: each process runs the target `reference`, two of them or more."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.backends import backend
from headrace.backends.several import Parallel, Several
from headrace.runtime.api import Lowered
from headrace.target import Target

KIND = "reference"
RANDOM = np.random.default_rng(0)
# Requests of many lengths, as ids and as texts of `tests.words.bert_like`.
IDS = [RANDOM.integers(5, 90, count).tolist() for count in RANDOM.integers(1, 50, 40)]
TEXTS = [" ".join(f"w{number}" for number in ids) for ids in IDS]


def several(count: int = 2, parallel: Parallel = Parallel.DATA, kind: str = KIND) -> Several:
    """So many devices of a kind that knows of one."""
    each = (Target(kind),) * count
    return Several(Target(kind, devices=tuple(range(count))), each, backend(kind), parallel)


def on_several(lowered: Lowered, devices: Several | None = None, **options: Any) -> Any:
    """A model that was lowered for one device, compiled for several."""
    made = Lowered(lowered.program, devices or several(), lowered.tokenizer, lowered.side_files)
    return made.compile(progress=False, **options)
