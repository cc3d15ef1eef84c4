"""Answers as JSON objects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np


def scored(answer: Any) -> dict[str, Any]:
    """An answer with a score, without digits that float32 does not have."""
    found = asdict(answer)
    found["score"] = shortest(found["score"])
    if found.get("scores") is not None:
        found["scores"] = {label: shortest(score) for label, score in found["scores"].items()}
    return found


def shortest(value: float) -> float:
    """The float32 value with the fewest digits that still give it."""
    return float(str(np.float32(value)))
