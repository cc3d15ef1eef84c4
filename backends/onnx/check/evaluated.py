"""Operators that ONNX's own evaluator computes otherwise than the standard says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun


class RMSNormalization(OpRun):
    """The evaluator squares a half as a half; `stash_type` 1 says that norms are computed in float32."""

    op_domain = ""

    def _run(
        self, x: NDArray[Any], scale: NDArray[Any], axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> tuple[NDArray[Any]]:  # fmt: skip
        assert stash_type == 1
        wide = x.astype(np.float32)
        axes = tuple(range(axis % x.ndim, x.ndim))
        unit = wide / np.sqrt(np.mean(np.square(wide), axis=axes, keepdims=True) + np.float32(epsilon))
        return ((unit.astype(x.dtype) * scale).astype(x.dtype),)
