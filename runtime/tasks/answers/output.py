"""Answers that are arrays, in the containers of other libraries."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, missing_library
from headrace.runtime.tasks.sparse_embed import SparseVectors

NUMPY, TORCH, ARROW = "numpy", "torch", "arrow"
OUTPUTS = (NUMPY, TORCH, ARROW)


def as_output(made: Any, output: str) -> Any:
    """Vectors [n, d], a list of [t, d], or sparse ones, as numpy's, torch's or Arrow's.

    Raises:
        InputError: there is no such output.
        TargetError: its library is not installed.
    """
    if output == NUMPY:
        return made
    if output not in OUTPUTS:
        raise InputError(f"output is {reprlib.repr(output)}; choose from {', '.join(OUTPUTS)}.")
    arrays = made if isinstance(made, list) else [made]
    if not all(isinstance(one, (np.ndarray, SparseVectors)) for one in arrays):
        raise InputError(f"output is {output!r}, and the task answers no vectors. Leave it out.")
    try:
        return _tensors(made) if output == TORCH else _columns(made)
    except ImportError as error:
        raise missing_library(error, f'output="{output}"') or error from error


def _tensors(made: Any) -> Any:
    import torch

    if isinstance(made, SparseVectors):
        rows = np.arange(len(made)).repeat(np.diff(made.offsets))
        places = torch.from_numpy(np.stack([rows, made.indices]))
        weights = torch.from_numpy(made.weights)
        return torch.sparse_coo_tensor(places, weights, made.shape, is_coalesced=True, check_invariants=True)
    return [torch.from_numpy(one) for one in made] if isinstance(made, list) else torch.from_numpy(made)


def _columns(made: Any) -> Any:
    import pyarrow

    if isinstance(made, SparseVectors):
        entries = pyarrow.StructArray.from_arrays([made.indices, made.weights], names=["index", "weight"])
        return pyarrow.ListArray.from_arrays(made.offsets.astype(np.int32), entries)
    if not isinstance(made, list):
        return _rows(made)
    offsets = np.cumsum([0, *map(len, made)]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(offsets, _rows(np.concatenate(made) if made else np.empty((0, 1), np.float32)))


def _rows(vectors: NDArray[Any]) -> Any:
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
