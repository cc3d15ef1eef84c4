"""Answers are numbers: a NaN or an infinity is an error, and never an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import non_finite


def require_finite(array: NDArray[Any], what: str, dtype: str) -> NDArray[Any]:
    """The array itself, if every value is finite.

    Args:
        array: an answer, or what becomes one.
        what: names it in the message.
        dtype: the dtype that the model ran in.

    Raises:
        NonFiniteError: a NaN or an infinity.
    """
    if np.isfinite(array).all():
        return array
    raise non_finite(what, dtype)
