"""Workers read requests and write answers beside the process that runs the models: as one process answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

import headrace
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.metrics import Metrics
from headrace.runtime.serve.server import bound
from headrace.runtime.serve.workers import desk, remote, team
from headrace.runtime.serve.workers.described import describe, described
from headrace.runtime.serve.workers.frames import Run
from headrace.runtime.serve.workers.link import Link, Message
from tests.runtime.serve.conftest import Running
from tests.runtime.serve.test_robust import blocked, until
from tests.words import bert_like

NAMES = ("tagger", "sparse", "ranker", "labeller", "both")


class Engine:
    """The models' end of a link, in a loop on a thread of its own."""

    def __init__(self, models: Any) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.asked: list[Run] = []
        self._models, self._begun = models, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._begun.wait(30)

    async def _run(self) -> None:
        held = desk.Desk(self._models, Limits(), Metrics())
        visitor, gone = desk.Visitor(held), asyncio.Event()

        def heard(message: Message) -> None:
            if isinstance(message, Run):
                self.asked.append(message)
            visitor.heard(message)

        visitor.link = await Link.over(self.ours, heard, gone.set)
        self._begun.set()
        await gone.wait()
        visitor.gone()
        held.close()

    def close(self) -> None:
        self._thread.join(30)


class Worker(Running):
    """A server of described models, whose other end is an engine's."""

    def __init__(self, models: Any, folder: Path, engine: Engine, limits: Limits | None = None) -> None:
        own = {name: described(made) for name, made in json.loads(json.dumps(describe(models, folder))).items()}
        self.desk, self._end = remote.Desk(), engine.theirs
        super().__init__(own, limits, runs=self.desk, beginning=self._join)

    async def _join(self) -> None:
        self.desk.link = await Link.over(self._end, self.desk.heard, lambda: None)

    def close(self) -> None:
        super().close()
        self._end.close()


@pytest.fixture(scope="module")
def engine(models: Any) -> Engine:
    return Engine({name: models[name] for name in NAMES})


@pytest.fixture(scope="module")
def worker(models: Any, engine: Engine, tmp_path_factory: Any) -> Iterator[Worker]:
    made = Worker({name: models[name] for name in NAMES}, tmp_path_factory.mktemp("described"), engine)
    yield made
    made.close()
    engine.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/entities", {"model": "tagger", "input": ["Call Sarah Connor in Springfield.", "nobody"]}),
        ("/v1/rerank", {"model": "ranker", "query": "w5", "documents": ["w6", "w7 w8", "w9"]}),
        ("/v1/classify", {"model": "labeller", "input": ["w5", "w6 w7 w8"]}),
        ("/v1/embeddings", {"model": "both", "input": [[5, 6, 7], [8]]}),
        ("/embed_sparse", {"model": "sparse", "inputs": ["x y", "z"]}),
        ("/v1/completions", {"model": "both", "prompt": ["w5 w6", "w7"], "max_tokens": 6, "logprobs": 2}),
        ("/tokenize", {"model": "tagger", "inputs": "Call Sarah"}),
    ],
)
def test_it_answers_as_one_process_does(worker: Worker, running: Running, path: str, body: dict[str, Any]) -> None:
    ours, theirs = (_numbers(one.post(path, **body)) for one in (worker, running))
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-5)


def _numbers(answer: Any) -> tuple[Any, list[float]]:
    """An answer without its numbers and what differs by the request, and its numbers."""
    found: list[float] = []

    def plain(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: plain(value) for name, value in one.items() if name not in ("id", "created")}
        if isinstance(one, list):
            return list(map(plain, one))
        if isinstance(one, float):
            found.append(one)
            return None
        return one

    return plain(answer), found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"model": "labeller", "inputs": "w5 " * 200}),
        ("/embed", {"model": "labeller", "inputs": "w5"}),
        ("/v1/completions", {"model": "labeller", "prompt": "w5"}),
        ("/v1/completions", {"model": "both", "prompt": "w5", "temperature": -1.0}),
        ("/v1/embeddings", {"model": "both", "input": [[5, 100_000]]}),
    ],
)
def test_it_refuses_in_the_same_words(worker: Worker, running: Running, path: str, body: dict[str, Any]) -> None:
    assert worker.refused(path, **body) == running.refused(path, **body)


def test_a_stream_comes_in_parts_and_ends_where_its_client_leaves(worker: Worker, models: Any) -> None:
    body = {"model": "both", "prompt": "w5 w6", "max_tokens": 20, "ignore_eos": True}
    whole = worker.post("/v1/completions", **body)["choices"][0]["text"]
    lines = worker.client.post("/v1/completions", json=body | {"stream": True}).text.split("\n\n")
    parts = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert lines[-2] == "data: [DONE]"
    assert len(parts) > 1
    assert "".join(part["choices"][0]["text"] for part in parts) == whole
    with worker.client.stream("POST", "/v1/completions", json=body | {"max_tokens": 50, "stream": True}) as answer:
        next(answer.iter_lines())
    until(lambda: not models["both"].engine.decoding().lane.state.store.used())


def test_what_is_refused_never_reaches_the_models(models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"labeller": models["labeller"]}
    engine = Engine(asked)
    worker = Worker(asked, tmp_path, engine, Limits(queue=1))
    try:
        with blocked(monkeypatch, models["labeller"]) as free, ThreadPoolExecutor(1) as pool:
            first = pool.submit(httpx2.post, f"{worker.url}/predict", json={"inputs": "w5"}, timeout=60)
            until(lambda: len(engine.asked) == 1)
            assert worker.refused("/predict", inputs="w5")[0] == 429
            assert worker.refused("/predict", inputs=3)[0] == 429  # before the body is read
            assert len(engine.asked) == 1
            free.set()
            assert first.result().status_code == 200
    finally:
        worker.close()
        engine.close()


def test_the_queue_is_shared_out() -> None:
    sockets: list[Any] = [None] * 3
    made = team.Team({}, sockets, Limits(queue=64), "info", (), ())
    assert made._told["limits"] == replace(Limits(), queue=22)


def test_a_worker_that_does_not_begin_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(team, "COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    heard, before = list[int](), signal.getsignal(signal.SIGTERM)
    with contextlib.closing(bound("127.0.0.1", 0)) as waiting:
        made = team.Team({}, [waiting], Limits(), "info", (), ())
        with pytest.raises(team.WorkerError, match="A worker ended with 3 before it listened"):
            made.run(lambda: heard.append(1))
    assert not heard
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow(reason="starts a server of three processes; the link between them is tested above")
def test_processes(tiny: Any, tmp_path: Path) -> None:
    """One that is killed is replaced, counts are summed, SIGTERM ends all, and none outlives the models."""
    model = headrace.compile(tiny("bert"), target="reference", tokenizer=bert_like(), pooling="mean").warm()
    command = [sys.executable, "-m", "headrace.runtime.tools.cli", "serve", str(model.save(tmp_path / "model"))]
    wanted = model.embed("w5 w6", normalize=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([*command, "--port", "0", "--workers", "2"], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://[\d.:]+", said)):
            said = process.stderr.readline()
            assert said, "the server ended"
        before = _children(process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        while len(after := _children(process.pid)) < 2 or before[0] in after:
            time.sleep(0.05)
        for _ in range(8):  # each by a connection of its own: either worker answers
            answer = httpx2.post(f"{found[0]}/embed", json={"inputs": "w5 w6"}, timeout=60)
            np.testing.assert_allclose(answer.json(), wanted, atol=1e-5)
        counted = httpx2.get(f"{found[0]}/metrics", timeout=60).text
        assert 'headrace_requests_total{route="/embed",status="200"} 8.0' in counted
        process.send_signal(number)
        process.stderr.close()
        assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
        for _ in range(200):
            if not any(Path(f"/proc/{pid}").exists() for pid in after):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("a worker outlives the models")


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
