"""Pages of mapped files go back to the system; no value ever changes."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.utils import madvise

SIZE = 1 << 20


@pytest.fixture
def mapped(tmp_path: Path) -> torch.Tensor:
    """8 MiB of float64 mapped from a file."""
    path = tmp_path / "weights"
    np.arange(SIZE, dtype=np.float64).tofile(path)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    return torch.from_file(str(path), shared=False, size=SIZE, dtype=torch.float64)


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's mapping that are in memory."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            inside = start <= tensor.data_ptr() < end
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the tensor is mapped nowhere")


@pytest.mark.skipif(not madvise.MAPS.exists(), reason="needs Linux")
def test_a_mapped_file_leaves_memory_and_comes_back(mapped: torch.Tensor, tmp_path: Path) -> None:
    if b"tmpfs" in subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path]):
        pytest.skip("needs temporary files on a disk")
    total = float(mapped.sum())
    assert resident(mapped) >= mapped.nbytes
    madvise.give_back([mapped[5:7]])
    assert resident(mapped) < mapped.nbytes / 4
    assert float(mapped.sum()) == total


def test_what_was_written_since_stays(mapped: torch.Tensor) -> None:
    mapped[::4096] = -1
    own = torch.arange(100.0)
    madvise.give_back([mapped, own])
    assert (mapped[::4096] == -1).all()
    assert mapped[4097] == 4097
    assert torch.equal(own, torch.arange(100.0))


def test_systems_that_do_not_tell_are_left_alone(mapped: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(madvise, "MAPS", Path("/nowhere"))
    madvise.give_back([mapped])
    assert mapped[7] == 7


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's malloc is asked")
def test_of_the_heap_the_pages_go_back_in_which_nothing_lies() -> None:
    """Where a piece in twenty is kept the system has the pages between, which freeing them alone leaves to the heap."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    pieces = [libc.malloc(ctypes.c_size_t(1 << 16)) for _ in range(1000)]
    for piece in pieces:
        ctypes.memset(piece, 1, 1 << 16)
    kept = pieces[::20]
    for piece in set(pieces) - set(kept):
        libc.free(ctypes.c_void_p(piece))
    before = held()
    madvise.trim_heap()
    assert held() < before - 50 * (1 << 20)
    for piece in kept:
        libc.free(ctypes.c_void_p(piece))


def held() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
