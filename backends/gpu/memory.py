"""Running out of a device's memory, whoever says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headrace.errors import OutOfMemoryError

# torch's allocator, the driver where it loads a kernel, and libraries where they make room for themselves. The latter
# two have no class of errors of their own.
SAID = ("out of memory", "ALLOC_FAILED")


def ran_out(error: RuntimeError) -> bool:
    """Whether an error of torch, Triton or a library says that memory ran out."""
    return any(word in str(error) for word in SAID)


@contextmanager
def memory_told() -> Iterator[None]:
    """What a device's memory has no room for, as an error of ours; torch gives back what it keeps for later first."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        torch.cuda.empty_cache()
        said = str(error).partition("\n")[0]
        # How much was asked for, and not what lies where.
        raise OutOfMemoryError(". ".join(said.split(". ")[:2]).rstrip(".")) from error
