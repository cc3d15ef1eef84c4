"""The precision of float32, pinned while a program is compiled and while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Of torch.set_float32_matmul_precision. "high" is TF32 on NVIDIA, and about bfloat16 on gfx942.
PRECISION = "highest"


@contextmanager
def exact() -> Iterator[None]:
    """float32 means float32: no product or convolution rounds it to TF32, XF32 or bfloat16, whatever is set."""
    old: str | None
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # the process has set one library's alone, which that function refuses to sum up
        old = None
    libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    each = [(library, library.fp32_precision) for library in libraries]
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(PRECISION)
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        if old is not None:
            torch.set_float32_matmul_precision(old)
        else:
            for library, precision in each:
                library.fp32_precision = precision
