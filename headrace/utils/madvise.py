"""Pages of memory, given back to the system once what they hold is not needed for now."""

import ctypes
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

MAPS = Path("/proc/self/maps")
# MADV_PAGEOUT, from Linux 5.4 on: takes pages back whose file still holds them, and never changes a value.
PAGE_OUT = 21


def give_back(tensors: Iterable[Tensor]) -> None:
    """Let the system have the pages back of the files that these tensors are mapped from; using them reads them again.

    What was written to since is no file's page any more, and stays. Where the system cannot, nothing happens: it takes
    such pages back itself once it needs them.
    """
    starts = sorted(tensor.data_ptr() for tensor in tensors)
    for start, end in _mapped_files():
        if bisect_left(starts, start) < bisect_left(starts, end):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), PAGE_OUT)


def trim_heap() -> None:
    """Let the system have the pages of the heap in which nothing lies, where the C library can: glibc's does.

    By itself it keeps what a large step took, in pieces between which the next step's do not fit.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Where files are mapped in this process; empty on systems that do not tell as Linux does."""
    for line in MAPS.read_text(errors="replace").splitlines() if os.access(MAPS, os.R_OK) else ():
        place, _, _, _, inode = line.split()[:5]
        if inode != "0":
            start, end = (int(bound, 16) for bound in place.split("-"))
            yield start, end
