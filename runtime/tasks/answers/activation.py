"""Logits to scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.ir import Activation

Floats = NDArray[np.float32]


def activate(logits: ArrayLike, activation: Activation) -> Floats:
    """Scores [..., labels] in float32, exact at any size of the logits."""
    values = np.asarray(logits, np.float32)
    if activation is Activation.IDENTITY:
        return values
    if activation is Activation.SIGMOID:
        return np.exp(-np.logaddexp(np.float32(0), -values))
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    scores: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return scores
