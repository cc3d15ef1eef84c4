"""Replicas on a local cluster of Ray: each answers as the model does, and one that is killed is replaced."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from tests.words import bert_like

TEXTS = [f"w{5 + place % 80} w{6 + place % 30}" for place in range(64)]


def ask(port: int, path: str, body: Any) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@pytest.mark.slow(reason="starts a cluster and two replicas, and kills one")
def test_two_replicas_answer_as_the_model_and_one_that_is_killed_is_replaced(tiny: Any, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.serve")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        model = headrace.compile(tiny("bert"), target="reference", tokenizer=bert_like(), pooling="mean").warm()
    folder, port = model.save(tmp_path / "model"), 18000 + os.getpid() % 1000
    wanted = model.embed(TEXTS, normalize=True)
    root = str(Path(__file__).parents[3])
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, *sys.path]), "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    try:
        ray.serve.start(http_options={"port": port})
        ray.serve.run(
            headrace.ray_application({"tiny": folder}, trust=True, num_replicas=2, ray_actor_options={"num_cpus": 1})
        )

        def one(place: int) -> Any:
            return ask(port, "/embed", {"inputs": TEXTS[place]})[0]

        with ThreadPoolExecutor(8) as threads:
            np.testing.assert_allclose(list(threads.map(one, range(len(TEXTS)))), wanted, atol=1e-5)
        with pytest.raises(urllib.error.HTTPError, match=r"4\d\d"):
            ask(port, "/embed", {"inputs": 5})
        before = _replicas(ray)
        assert len(before) == 2
        ray.kill(ray.get_actor(before[0], namespace="serve"))
        found = [_until_answered(lambda place=place: one(place)) for place in range(len(TEXTS))]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        while len(set(_replicas(ray)) - {before[0]}) < 2:
            time.sleep(0.2)
    finally:
        ray.serve.shutdown()
        ray.shutdown()


def _until_answered(call: Any) -> Any:
    """What a client gets that asks again where its replica died."""
    for _ in range(100):
        try:
            return call()
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
            time.sleep(0.1)
    pytest.fail("nothing answers")


def _replicas(ray: Any) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in named if one["name"].startswith("SERVE_REPLICA"))
