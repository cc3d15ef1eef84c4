"""One model split over two devices: the same answers, and the refusals."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.backends.several import Parallel
from tests.devices import IDS, TEXTS, on_several, several


@pytest.fixture(scope="module")
def both(one: Any) -> Iterator[Any]:
    made = on_several(one, several(parallel=Parallel.TENSOR))
    yield made
    made.close()


def test_ids_and_texts(one: Any, both: Any) -> None:
    alone = one.compile()
    for got, wanted in zip(both(IDS), alone(IDS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_allclose(both.embed(TEXTS), alone.embed(TEXTS), atol=1e-5)
    for got, wanted in zip(both.token_embed(TEXTS), alone.token_embed(TEXTS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_calls_on_several_threads_sum_in_one_order(both: Any) -> None:
    wanted, found = both.embed(TEXTS), dict[int, Any]()

    def ask(number: int) -> None:
        found[number] = both.embed(TEXTS[number:] + TEXTS[:number])

    threads = [Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(4):
        np.testing.assert_allclose(found[number], np.roll(wanted, -number, 0), atol=1e-5)


def test_it_goes_on_after_errors_and_readers_that_stop(both: Any) -> None:
    with pytest.raises(headrace.InputTooLongError):
        both.embed([*TEXTS, "w5 " * 100], truncate=False)
    requests = both.call("embed").reader.encode(TEXTS, truncate=None)
    answers = both.engine.answered("embed", iter([requests]), len(requests), progress=False)
    next(answers)
    answers.close()
    assert both.embed(TEXTS[:3]).shape == (3, 32)
    assert not both.engine.pool.loads.any()


def test_parts_are_not_saved(both: Any, tmp_path: Any) -> None:
    with pytest.raises(headrace.ArtifactError, match="split over its devices"):
        both.save(tmp_path / "saved")
