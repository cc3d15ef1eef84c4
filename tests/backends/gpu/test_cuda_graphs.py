"""What is captured of rows, as far as it shows without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.backends.gpu import cuda_graphs, executable
from headrace.backends.gpu.cuda_graphs import SHORT_ROWS, Alone, Recorded, Replays, Shape, _staged, shape_of
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


class Device:
    """Graphs and events of a device that runs nothing before it is asked whether it is done."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def record(self, run: Any, given: Any, pool: Any) -> Recorded:
        made = tuple(run(*given))
        graph = SimpleNamespace(replay=lambda: self.queue.append(lambda: run(*given)))
        return Recorded(graph, run, made)

    def event(self) -> Any:
        def synchronize() -> None:
            while self.queue:
                self.queue.pop(0)()

        return SimpleNamespace(record=lambda: None, query=lambda: not self.queue, synchronize=synchronize)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """A graph that doubles two numbers and answers their sum besides."""
    device, staged = Device(), torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(cuda_graphs, "record", device.record)
    monkeypatch.setattr(torch.cuda, "Event", device.event)

    def run(given: torch.Tensor) -> list[torch.Tensor]:
        return [2.0 * given[:, None], given.sum()[None].float()]

    return Alone(device.record(run, [staged], None), staged, [staged], None)


def test_a_row_alone_is_answered_in_memory_of_its_own_once_it_was_read(alone: Alone) -> None:
    alone.staged.copy_(torch.tensor([3, 4]))
    rows, total = alone.replay([1, None])
    assert not alone.free
    assert np.asarray(rows).tolist() == [[6.0]]
    assert not alone.free  # the other was not read
    assert np.asarray(total).tolist() == [7.0]
    assert alone.free
    alone.staged.copy_(torch.tensor([5, 6]))
    (again, _) = alone.replay([2, None])
    assert np.asarray(rows).tolist() == [[6.0]]
    assert np.asarray(again).tolist() == [[10.0], [12.0]]


def test_what_nobody_reads_is_free_once_it_ran(alone: Alone) -> None:
    answers = alone.replay([2, None])
    del answers
    assert not alone.free  # the device may still read what would be written
    alone._done.synchronize()
    assert alone.free


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
    assert not replays._short
    replays.capture_short()
    short: Any = replays._short
    assert {pool for _, pool in short.values()} == {"a"}
    assert replays.give_back()
    assert not replays.give_back()
    assert not replays._long
    assert len(replays._short) == len(SHORT_ROWS)
    assert [replays._captured(shape_of(8192, 20)) for _ in range(3)] == [None] * 3


def test_a_short_row_is_captured_when_it_first_comes_and_once(replays: Replays) -> None:
    shape = cuda_graphs.shape_of_short(64)
    made: Any = replays._captured(shape)
    assert made == (shape, "a")
    replays.capture_short()
    assert replays._short[shape] is made


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
