"""Packages of compiled code: weights of every layout, which go with the model that they were loaded for."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module, write_package
from headrace.backends.inductor.runner import read_package
from headrace.errors import ArtifactError
from headrace.graphs import flat_module

WIDTH = 1024  # 4 MB a matrix
# Reads all pages of a file, and holds them until it is told to end.
READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
sum(pages[::mmap.PAGESIZE])
print("read", flush=True)
input()
"""


class Odd(nn.Module):
    """Weights whose storage is not their own: a part of another's, one value for all, turned, and two of one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        both = torch.randn(2 * WIDTH, WIDTH) / WIDTH**0.5
        self.first, self.second = nn.Parameter(both[:WIDTH]), nn.Parameter(both[WIDTH:])
        self.turned, self.columns = nn.Parameter(both[:WIDTH].clone().T), nn.Parameter(both[WIDTH:, 1:9])
        self.same = nn.Parameter(torch.tensor([2.0]).expand(8))
        self.tied = self.first
        self.register_buffer("shift", torch.arange(16.0)[8:], persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        rows = x @ self.first @ self.second @ self.turned @ self.tied
        return (rows @ self.columns * self.same + self.shift,)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("package") / "odd.pt2"
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(Odd(), (torch.ones(3, WIDTH),), dynamic_shapes=({0: rows},))
    code, weights = compile_module(flat_module(exported), exported.example_inputs[0], {}, "odd")
    write_package(path, code, compose(weights))
    return path


def test_weights_of_every_layout_survive(package: Path) -> None:
    given = torch.randn(5, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(read_package(package)([given])[0], Odd()(given)[0])


def test_weights_go_with_their_model(package: Path) -> None:
    """50 loads of some 20 MB leave less than two behind, and one library; the first find room for what they take."""
    held = read_package(package)  # some versions of torch unload a library that nobody holds
    for _ in range(5):
        read_package(package)([torch.ones(2, WIDTH)])
    before, libraries = resident(), mapped()
    for _ in range(50):
        read_package(package)([torch.ones(2, WIDTH)])
    assert resident() - before < 2 * package.stat().st_size
    assert mapped() == libraries > 0
    del held


def test_models_of_one_package_are_their_own(package: Path) -> None:
    given = torch.randn(4, WIDTH)
    one, other = read_package(package), read_package(package)
    (wanted,) = one([given])
    del one
    gc.collect()
    torch.testing.assert_close(other([given])[0], wanted)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a package"])
def test_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(content)
    with pytest.raises(ArtifactError, match="is no compiled code of this version"):
        read_package(tmp_path / "model.pt2")


def resident() -> int:
    """Bytes of memory that the process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def mapped() -> int:
    """How often a package's library is there."""
    maps: Any = Path("/proc/self/maps").read_text().splitlines()
    return sum(".so" in line and "/headrace-" in line for line in maps)


def test_weights_are_the_files_own_pages(package: Path) -> None:
    """What two processes map is there once, and one that writes to its weights changes nobody else's."""
    held, content = read_package(package), package.read_bytes()
    other = subprocess.Popen(
        [sys.executable, "-c", READER, str(package)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "read\n"
        (before,) = held([torch.ones(2, WIDTH)])
        shared, private = pages(package)
        assert shared > 3 * WIDTH * WIDTH * 4 * 0.9
        assert private == 0
        other.communicate("\n")
    changed = read_package(package)
    for weight in changed.memory.weights.values():
        weight.zero_()
    assert changed([torch.ones(2, WIDTH)])[0].tolist() == [Odd().shift.tolist()] * 2
    torch.testing.assert_close(held([torch.ones(2, WIDTH)])[0], before)
    assert package.read_bytes() == content


def pages(path: Path) -> tuple[int, int]:
    """Bytes of a file that this process has in common with others, and copies of such that it made to write to them."""
    shared = private = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            inside = line.endswith(str(path))
        elif inside:
            shared += int(values[0]) * 1024 if name in ("Shared_Clean:", "Shared_Dirty:") else 0
            private += int(values[0]) * 1024 if name == "Anonymous:" else 0
    return shared, private
