"""What is told of memory that ran out. tests/runtime/engine/test_out_of_memory.py fills a real device."""

from __future__ import annotations

import pytest
import torch

from headrace.backends.gpu.memory import memory_told
from headrace.errors import OutOfMemoryError

ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.02 GiB is "
    "free. Process 1 has 138.00 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError(ALLOCATOR), "CUDA out of memory. Tried to allocate 2.00 GiB"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "Triton Error [CUDA]: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later."),
            "CUDA error: out of memory",
        ),
    ],
)
def test_whoever_says_so(error: RuntimeError, told: str) -> None:
    with pytest.raises(OutOfMemoryError) as found, memory_told():
        raise error
    assert str(found.value) == told


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="misaligned address") as found, memory_told():
        raise RuntimeError("CUDA error: misaligned address")
    assert not isinstance(found.value, OutOfMemoryError)
