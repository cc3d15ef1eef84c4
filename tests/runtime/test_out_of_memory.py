"""A device whose memory is really full. tests/runtime/test_packing.py holds what needs no device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import HeadraceWarning, OutOfMemoryError
from tests.tiny import VOCABULARY, build

pytestmark = pytest.mark.gpu

# So wide that a step's activations dwarf all else that the device holds: 2 GiB a row of 16,384 tokens, in float32.
WIDE = {"hidden_size": 256, "intermediate_size": 1 << 15, "num_hidden_layers": 1, "max_position_embeddings": 12288}


@contextmanager
def filled(room: int) -> Iterator[None]:
    """All of the device's memory taken, but for `room` bytes."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - room, dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


def peak(run: Callable[[], Any]) -> int:
    """Bytes that a call allocates at most at once."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def requests(*lengths: int) -> list[Any]:
    drawn = np.random.default_rng(0)
    return [drawn.integers(5, VOCABULARY, length) for length in lengths]


def require_equal(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_full_device_halves_the_budget_refuses_what_cannot_fit_and_serves_on() -> None:
    """Each row comes twice before the device is full, or not at all: rows that were captured need no more memory."""
    served = headrace.compile(build("bert", **WIDE), dtype="float32", pooling="mean", progress=False)
    many, (long,) = requests(*[512] * 40), requests(WIDE["max_position_embeddings"])
    wanted: list[Any] = []
    need = peak(lambda: wanted.extend(served(many)))
    assert need > 1 << 30, f"a step took {need:,} bytes"
    with (
        filled(need * 3 // 4),
        pytest.warns(HeadraceWarning, match=r"16384 tokens needs more.*goes on with 8192") as told,
    ):
        halved = served(many)
    assert len([one for one in told if issubclass(one.category, HeadraceWarning)]) == 1
    require_equal(halved, wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with filled(need * 3 // 4):
            require_equal(served(many), wanted)
        with (
            filled(need // 4),
            pytest.raises(OutOfMemoryError, match=r"Request 0, of 12288 tokens, .* ran alone: .*memory"),
        ):
            served([long])
        with filled(need // 4):
            require_equal(served(many[:2]), wanted[:2])
        require_equal(served(many), wanted)
        assert np.isfinite(served([long])[0]).all()
