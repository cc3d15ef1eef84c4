"""A worker that is pickled as its folder, alone and on Ray."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.corpora.worker import Embedder
from tests.runtime.corpora.test_embed import texts
from tests.words import bert_like


@pytest.fixture(scope="module")
def saved(tiny: Any, tmp_path_factory: Any) -> tuple[Any, Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        model = headrace.compile(tiny("bert"), target="reference", tokenizer=bert_like(), pooling="mean").warm()
    return model, model.save(tmp_path_factory.mktemp("worker") / "model")


def test_it_is_pickled_as_its_folder(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    first = Embedder(folder, dimensions=8, truncate=False)
    given = {"id": np.arange(4), "text": np.array(["w5", None, "w6 " * 100, "w7 w8"], object)}
    first(given)
    wire = pickle.dumps(first)
    assert len(wire) < 1000  # no weights
    found = pickle.loads(wire)(given)
    assert found["id"] is given["id"]
    np.testing.assert_allclose(found["embedding"][[0, 3]], model.embed(["w5", "w7 w8"], dimensions=8), atol=1e-5)
    assert np.isnan(found["embedding"][[1, 2]]).all()
    assert [error is None for error in found["error"]] == [True, False, False, True]
    assert "at most 64 are accepted" in found["error"][2]


@pytest.mark.slow(reason="starts a cluster of two workers, and kills one")
def test_on_two_workers_of_ray(saved: tuple[Any, Path], tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas comes with ray[data]")
    ray = pytest.importorskip("ray")
    model, folder = saved
    given, killed = texts(200), tmp_path / "killed"
    root = str(Path(__file__).parents[3])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, *sys.path]), "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    try:
        table = ray.data.from_items(
            [{"row": row, "text": text} for row, text in enumerate(given)], override_num_blocks=20
        )
        pool = ray.data.ActorPoolStrategy(size=2)
        found = table.map_batches(
            Dying,
            fn_constructor_args=(folder,),
            fn_constructor_kwargs={"killed": str(killed)},
            compute=pool,
            batch_size=10,
        ).take_all()
    finally:
        ray.shutdown()
    assert killed.exists()
    assert sorted(one["row"] for one in found) == list(range(len(given)))
    wanted = model.embed(given)
    for one in found:
        np.testing.assert_allclose(one["embedding"], wanted[one["row"]], atol=1e-5)


class Dying:
    """A worker that is killed once, in the middle."""

    def __init__(self, folder: Any, killed: str) -> None:
        self._embedder, self._killed, self._calls = Embedder(folder, trust=True), Path(killed), 0

    def __call__(self, batch: Any) -> Any:
        self._calls += 1
        if self._calls == 3 and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._embedder(batch)
