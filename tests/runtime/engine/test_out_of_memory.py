"""A device whose memory is really full. tests/runtime/engine/test_packed_batch.py holds what needs no device."""

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
def limited(room: int) -> Iterator[None]:
    """torch's allocator is given `room` bytes past what it holds, and refuses more as on a full device.

    A limit and not a tensor that takes the rest: other processes give memory back meanwhile.
    """
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
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
    """What was captured needs no more memory, so that each row of 16,384 tokens is of another number of requests."""
    served = headrace.compile(build("bert", **WIDE), dtype="float32", pooling="mean", progress=False)
    served(requests(*[256] * 64))
    need = peak(lambda: served(requests(*[128] * 128)))
    many, (long,) = requests(*[512] * 40), requests(WIDE["max_position_embeddings"])
    wanted = served(many)
    print(f"a row needs {need:,} bytes; reserved {torch.cuda.memory_reserved():,}; free {torch.cuda.mem_get_info()}")
    assert need > 1 << 30
    with limited(need * 3 // 4), pytest.warns(HeadraceWarning, match=r"16384 tokens.*goes on with 8192") as told:
        halved = served(many)
    assert len([one for one in told if issubclass(one.category, HeadraceWarning)]) == 1
    require_equal(halved, wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HeadraceWarning)
        with limited(need * 3 // 4):
            require_equal(served(many), wanted)
        refused = r"Request 0, of 12288 tokens, .* ran alone: .*out of memory. Tried to allocate"
        with limited(need // 4):
            with pytest.raises(OutOfMemoryError, match=refused):
                served([long])
            require_equal(served(many[:2]), wanted[:2])
        require_equal(served(many), wanted)
        assert np.isfinite(served([long])[0]).all()
