"""What is captured of rows, as far as it shows without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.backends.gpu import cuda_graphs, executable
from headrace.backends.gpu.cuda_graphs import SHORT_ROWS, Replays, Shape, _staged, shape_of
from headrace.ir import OFFSETS


@pytest.mark.parametrize("tokens", [*SHORT_ROWS, 4096, 16384])
def test_a_shape_holds_its_row_and_there_are_few(tokens: int) -> None:
    shapes = {shape_of(tokens, count) for count in range(1, 2049)}
    assert all(shape_of(tokens, count).sequences >= count for count in range(1, 2049))
    assert all(shape_of(tokens, count).sequences <= max(count * 3 // 2, 12, tokens // 8) for count in range(2, 2049))
    assert len(shapes) <= 18


def test_inputs_are_staged_in_one_piece() -> None:
    """Types before offsets or after: the rows keep the order of the names."""
    inputs = {
        "input_ids": torch.arange(16)[None],
        "position_ids": torch.arange(16)[None] + 100,
        OFFSETS: torch.tensor([0, 5, 9], dtype=torch.int32),
    }
    staged = _staged(inputs, tuple(inputs), Shape(16, 4))
    assert staged.view(torch.int32)[:5].tolist() == [0, 5, 9, 9, 9]
    assert staged[4:].tolist() == [*range(16), *range(100, 116)]


@pytest.fixture
def replays(analysed: Any, monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Of a program that is never run; a capture of 9,000 tokens and more finds no memory."""

    def capture(self: Replays, shape: Shape, pool: Any) -> Any:
        if shape.tokens >= 9000:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 ...")
        return shape, pool

    monkeypatch.setattr(Replays, "_capture", capture)
    pools = iter("abc")
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    return Replays(lambda *_: torch.zeros(0), analysed("bert"))


def test_a_long_row_is_captured_when_it_comes_again(replays: Replays) -> None:
    shape = shape_of(4096, 20)
    assert replays._captured(shape) is None
    made: Any = replays._captured(shape)
    assert made == (shape, "b")
    short: Any = replays._short
    assert {pool for _, pool in short.values()} == {"a"}
    assert replays.give_back()
    assert not replays.give_back()
    assert not replays._long
    assert len(replays._short) == len(SHORT_ROWS)
    assert [replays._captured(shape_of(8192, 20)) for _ in range(3)] == [None] * 3


def test_a_capture_without_memory_lets_go_of_the_others(replays: Replays) -> None:
    small, large = shape_of(4096, 20), shape_of(16384, 20)
    for shape in (small, small, large, large):
        last = replays._captured(shape)
    assert last is None
    assert not replays._long


def test_a_row_without_memory_runs_once_more_without_what_was_captured(replays: Replays, monkeypatch: Any) -> None:
    monkeypatch.setattr(executable, "moved", lambda tensor: tensor)
    made = object.__new__(executable.Packed)
    made._names, made._replays, left = ("input_ids",), replays, [2]

    def run(ids: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 ...")
        return ids

    monkeypatch.setattr(made, "_exactly", run)
    with pytest.raises(torch.OutOfMemoryError):  # nothing was captured: there is nothing to give back
        made._kernel_by_kernel({"input_ids": torch.ones(1)})
    replays._long[Shape(4096, 24)] = cuda_graphs.Capture(*[None] * 3)
    made._kernel_by_kernel({"input_ids": torch.ones(1)})
    assert left == [-1]
