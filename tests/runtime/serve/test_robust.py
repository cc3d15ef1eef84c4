"""Many clients, bad ones among them: nobody's request costs another theirs, and nothing is held for who left."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest

from headrace.errors import InputError, OutOfMemoryError
from headrace.ir import Task
from headrace.runtime.serve.batcher import Gathering, Piece
from headrace.runtime.serve.intake import SHORT
from headrace.runtime.serve.job import Lot
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.refusals import Dialect, refusal_of, written
from headrace.runtime.text.encoded import Tokens
from tests.runtime.serve.conftest import Running

POISON = 42
PROMPT = "w5 w6"


@contextmanager
def serving(models: Any, name: str, limits: Limits | None = None, **options: Any) -> Iterator[Running]:
    """A server of its own, of one model."""
    made = Running({name: models[name]}, limits, **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def blocked(monkeypatch: pytest.MonkeyPatch, model: Any) -> Iterator[threading.Event]:
    """While it is entered, batches wait for the event."""
    free, run = threading.Event(), model.engine.answered

    def waits(*args: Any, **options: Any) -> Any:
        assert free.wait(30)
        return run(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(model.engine, "answered", waits)
        try:
            yield free
        finally:
            free.set()


def together(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """What so many clients get at once."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def until(what: Callable[[], bool]) -> None:
    for _ in range(500):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to be")


def test_a_bad_text_among_others_is_refused_alone(running: Running, models: Any) -> None:
    texts = [f"w{5 + place} w6" for place in range(24)]
    texts[7] = "w5 " * 200

    def ask(place: int) -> httpx2.Response:
        return httpx2.post(f"{running.url}/predict", json={"model": "labeller", "inputs": texts[place]}, timeout=60)

    for place, answer in enumerate(together(len(texts), ask)):
        if place == 7:
            assert answer.status_code == 413
            assert answer.json()["error"].startswith("Text 0 has ")
        else:
            wanted = models["labeller"].classify(texts[place])[0]
            assert answer.json()[0]["label"] == wanted.label
            assert abs(answer.json()[0]["score"] - wanted.score) < 1e-5


def test_a_text_at_which_a_batch_fails_fails_alone(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run, sizes = models["labeller"], models["labeller"].engine.answered, list[int]()

    def fails(task: Any, parts: Any, count: int, *args: Any, **options: Any) -> Any:
        listed = list(parts)
        sizes.append(count)
        if any(POISON in one.ids for part in listed for one in part):
            raise RuntimeError("secret")
        return run(task, listed, count, *args, **options)

    with serving(models, "labeller") as server, blocked(monkeypatch, model) as free:
        monkeypatch.setattr(model.engine, "answered", lambda *a, **o: free.wait(30) and fails(*a, **o))

        def ask(place: int) -> httpx2.Response:
            text = f"w{POISON}" if place == 3 else f"w{5 + place}"
            return httpx2.post(f"{server.url}/predict", json={"inputs": text}, timeout=60)

        threading.Timer(0.5, free.set).start()
        answers = together(8, ask)
    assert [one.status_code for one in answers] == [200, 200, 200, 500, 200, 200, 200, 200]
    assert "secret" not in answers[3].text
    assert "Traceback" not in answers[3].text
    assert max(sizes) > 1


@pytest.mark.parametrize("ahead", [True, False])
def test_a_device_gets_its_next_batch_while_one_runs(models: Any, monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    model, run, begun, free = models["labeller"], models["labeller"].engine.answered, list[int](), threading.Event()

    def waits(*args: Any, **options: Any) -> Any:
        begun.append(1)
        assert free.wait(30)
        return run(*args, **options)

    monkeypatch.setattr(model.engine.backend, "ahead", ahead)
    wanted = model.classify(["w5", "w6"])
    with monkeypatch.context() as patch, serving(models, "labeller") as server, ThreadPoolExecutor(2) as pool:
        patch.setattr(model.engine, "answered", waits)
        asked = []
        for place in range(2):
            body = {"inputs": f"w{5 + place}"}
            asked.append(pool.submit(httpx2.post, f"{server.url}/predict", json=body, timeout=60))
            until(lambda: f'task="classify"}} {len(asked)}.0' in server.client.get("/metrics").text)
        if ahead:
            until(lambda: len(begun) == 2)
        time.sleep(0.05)  # much longer than a batch waits for others
        assert len(begun) == 1 + ahead
        free.set()
        for one, right in zip(asked, wanted, strict=True):
            assert one.result().json()[0]["label"] == right.label


def test_what_is_too_much_is_told_to_come_again(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(models, "labeller", Limits(queue=2)) as server, blocked(monkeypatch, models["labeller"]) as free:

        def ask(place: int) -> httpx2.Response:
            answer = httpx2.post(f"{server.url}/predict", json={"inputs": "w5"}, timeout=60)
            if answer.status_code == 429:
                refused.append(answer)
                if len(refused) == 8:
                    free.set()
            return answer

        refused: list[httpx2.Response] = []
        answers = together(10, ask)
        assert sorted(one.status_code for one in answers) == [200] * 2 + [429] * 8
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        assert refused[0].json()["error_type"] == "overloaded"
        assert server.post("/predict", inputs="w5")  # there is room again


def test_an_answer_that_takes_too_long(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(models, "labeller", Limits(timeout=0.2)) as server, blocked(monkeypatch, models["labeller"]):
        assert server.refused("/v1/classify", input="w5")[0] == 504
        queued = server.client.get("/metrics").text
        assert 'headrace_queue_requests{model="labeller",task="classify"} 0.0' in queued


def test_generation_for_a_client_that_leaves_ends(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = models["writer"].engine.decoding()
    step, steps = loop.step, list[int]()

    def slow() -> Any:
        steps.append(1)
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(loop, "step", slow)
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}
    with serving(models, "writer") as server:
        with server.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        until(lambda: not loop.lane.state.store.used())
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
        until(lambda: not loop.lane.state.store.used())
        assert len(steps) < 60


def test_a_stream_that_breaks_is_not_passed_off_as_whole(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("openai")
    loop = models["writer"].engine.decoding()
    step, steps = loop.step, list[int]()

    def fails() -> Any:
        steps.append(1)
        if len(steps) > 3:
            raise OutOfMemoryError("The device is full.")
        return step()

    monkeypatch.setattr(loop, "step", fails)
    with serving(models, "writer") as server:
        body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "stream": True}
        lines = server.client.post("/v1/completions", json=body).text.split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["message"] == "The device is full."
        assert "[DONE]" not in "".join(lines)
        steps.clear()
        with client.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
            parts = made.completions.create(model="writer", prompt=PROMPT, max_tokens=20, stream=True)
            with pytest.raises(client.APIError, match="The device is full"):
                list(parts)
    assert not loop.lane.state.store.used()


def test_a_prompt_at_which_a_step_fails_fails_alone(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = models["writer"].engine.decoding()
    begin = loop._begin

    def fails(turns: Any, *rest: Any) -> Any:
        time.sleep(0.02)  # the clients meet
        if any(POISON in turn.sequence.tokens[:2] for turn in turns):
            raise RuntimeError("secret")
        return begin(turns, *rest)

    prompts = [[5, 6], [7, 8], [9, POISON], [10, 11]]
    sound = [prompt for prompt in prompts if POISON not in prompt]
    wanted = iter(models["writer"].generate(sound, max_new_tokens=12))
    monkeypatch.setattr(loop, "_begin", fails)
    with serving(models, "writer") as server:

        def ask(place: int) -> httpx2.Response:
            body = {"prompt": prompts[place], "max_tokens": 12}
            return httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)

        answers = together(len(prompts), ask)
    assert [one.status_code for one in answers] == [200, 200, 500, 200]
    assert "secret" not in answers[2].text
    assert [one.json()["choices"][0]["text"] for one in answers if one.status_code == 200] == [
        one.text for one in wanted
    ]
    assert not loop.lane.state.store.used()


def test_the_loop_waits_for_no_other_reader(models: Any) -> None:
    """A tokenizer that another thread has keeps those who ask for it, and nobody else."""
    guard = models["labeller"].call(Task.CLASSIFY).texts()._reader._guard
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with guard.lock:
            held.set()
            assert free.wait(30)

    with serving(models, "labeller") as server, ThreadPoolExecutor(2) as pool:
        holding = pool.submit(hold)
        assert held.wait(30)
        asked = pool.submit(httpx2.post, f"{server.url}/predict", json={"inputs": "w5"}, timeout=60)
        until(lambda: 'task="classify"} 1.0' in server.client.get("/metrics").text)
        assert server.client.get("/health").status_code == 200
        free.set()
        holding.result()
        assert asked.result().status_code == 200


def test_long_texts_are_answered_as_short_ones(models: Any) -> None:
    texts = [" ".join(f"w{5 + (place + at) % 40}" for at in range(30)) for place in range(120)]
    with serving(models, "labeller") as server:
        assert sum(map(len, texts)) > SHORT
        together = server.post("/predict", inputs=[[text] for text in texts])
        for text, found in zip(texts[::17], together[::17], strict=True):
            alone = server.post("/predict", inputs=text)
            assert [one["label"] for one in found] == [one["label"] for one in alone]
            scores = np.array([[one["score"] for one in some] for some in (found, alone)])
            np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_limits_on_what_is_sent(models: Any) -> None:
    limits = Limits(body=2000, texts=3, characters=100)
    with serving(models, "labeller", limits) as server:
        assert server.refused("/predict", inputs=[["w5"]] * 4)[1].startswith("The request has 4 texts; at most 3")
        assert server.refused("/predict", inputs="w5 " * 40)[1].startswith("Text 0 has 120 characters; at most 100")
        assert server.refused("/predict", inputs="w5 " * 1000)[1].startswith("The body is longer than 2000 bytes")
        chunks = (b" " * 999 for _ in range(4))  # of a body whose length is not stated
        answer = server.client.post("/predict", content=chunks, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        plain = server.client.post("/predict", content=b'{"inputs": "w5"}', headers={"content-type": "text/plain"})
        assert plain.status_code == 415
        assert server.post("/predict", inputs="w5")


def test_keys(models: Any) -> None:
    with serving(models, "labeller", keys=["alpha", "beta"]) as server:
        ask = server.client.post
        assert server.client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer gamma"}, {"authorization": "alpha"}):
            answer = ask("/predict", json={"inputs": "w5"}, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert server.client.get("/metrics").status_code == 401
        assert ask("/predict", json={"inputs": "w5"}, headers={"authorization": "Bearer beta"}).status_code == 200


def test_pages_of_other_origins(models: Any) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with serving(models, "labeller", origins=["https://a.example"], keys=["alpha"]) as server:
        allowed = server.client.options("/predict", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = server.client.options("/predict", headers=asked | {"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
    with serving(models, "labeller") as server:
        assert "access-control-allow-origin" not in server.client.options("/predict", headers=asked).headers


def test_what_is_under_way_ends_before_the_server_does(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(models, "labeller") as server,
        blocked(monkeypatch, models["labeller"]) as free,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(httpx2.post, f"{server.url}/predict", json={"inputs": "w5"}, timeout=60)
        until(lambda: 'task="classify"} 1.0' in server.client.get("/metrics").text)
        server.client.close()
        server._server.should_exit = True
        until(lambda: not server._server.servers or not server._server.servers[0].is_serving())
        free.set()
        assert asked.result().status_code == 200


def test_the_log_has_a_line_a_request_and_no_text(models: Any) -> None:
    from headrace.runtime.serve.journal import Lines

    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(Lines().format(record))

    handler = Kept()
    logger = logging.getLogger("headrace.serve")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with serving(models, "labeller") as server:
            answer = server.client.post("/predict", json={"inputs": "w5 w77"}, headers={"x-request-id": "mine"})
            assert answer.headers["x-request-id"] == "mine"
            assert len(server.client.get("/health", headers={"x-request-id": "no\tid"}).headers["x-request-id"]) == 32
            server.refused("/predict", inputs=3)
    finally:
        logger.removeHandler(handler)
    first, _, last = map(json.loads, lines)
    wanted = {"id": "mine", "path": "/predict", "status": 200, "model": "labeller", "task": "classify", "tokens": 4}
    assert {name: first[name] for name in wanted} == wanted
    assert last["status"] == 422
    assert "w77" not in "".join(lines)


def lot(*requests: tuple[int, ...], age: float = 1.0) -> Lot:
    """Requests that are read, each of texts of so many tokens."""
    lengths = np.array([length for request in requests for length in request])
    tokens = Tokens(np.zeros(lengths.sum(), np.int64), lengths)
    return Lot(tokens, np.array(list(map(len, requests))), time.monotonic() - age)


def taken(gathering: Gathering) -> list[tuple[Lot, int, int]]:
    return [(lot, begin, end) for lot, begin, end in gathering.take()]


def test_a_long_request_delays_no_short_one() -> None:
    gathering = Gathering(full=10, delay=0.0)
    long, short = lot((5,) * 6), lot((5,))
    gathering.add(long)
    assert taken(gathering) == [(long, 0, 2)]
    gathering.add(short)
    assert taken(gathering) == [(long, 2, 4)]
    assert taken(gathering) == [(short, 0, 1), (long, 4, 5)]
    assert taken(gathering) == [(long, 5, 6)]
    gathering.close()
    assert gathering.take() == []


def test_a_long_request_delays_none_that_was_read_with_it() -> None:
    gathering = Gathering(full=10, delay=0.0)
    both = lot((4,), (4,) * 5, (1,), (2,))
    gathering.add(both)
    assert taken(gathering) == [(both, 0, 3)]
    assert taken(gathering) == [(both, 6, 8), (both, 3, 5)]
    assert taken(gathering) == [(both, 5, 6)]


def test_what_nobody_waits_for_does_not_begin() -> None:
    gathering = Gathering(full=100, delay=0.0)
    some, other = lot((1,), (1, 1), (1,), (1,)), lot((1,))
    some.gone |= {1, 3}
    gathering.add(some)
    gathering.add(other)
    assert taken(gathering) == [(some, 0, 1), (some, 3, 4), (other, 0, 1)]
    other.gone.add(0)
    gathering.add(other)
    gathering.add(lot((3,)))
    assert [piece.end for piece in gathering.take()] == [1]
    assert gathering._tokens == 0


def test_a_batch_departs_when_it_is_full_or_its_oldest_is_old() -> None:
    gathering = Gathering(full=10, delay=0.2)
    began = time.monotonic()
    gathering.add(lot((5,), age=0.0))
    gathering.add(lot((5,), age=0.0))
    assert len(gathering.take()) == 2
    full = time.monotonic() - began
    gathering.add(lot((5,), age=0.0))
    assert len(gathering.take()) == 1
    assert time.monotonic() - began > 0.2 > full


def test_two_take_batches_of_one_gathering() -> None:
    gathering, added = Gathering(full=10, delay=0.0002), [lot((3, 4), (2,)) for _ in range(300)]

    def take() -> list[tuple[Lot, int]]:
        found = list[tuple[Lot, int]]()
        while batch := gathering.take():
            found += [(piece.lot, text) for piece in batch for text in range(piece.begin, piece.end)]
        return found

    with ThreadPoolExecutor(2) as pool:
        takers = [pool.submit(take) for _ in range(2)]
        for place, one in enumerate(added):
            one.arrived = time.monotonic()
            gathering.add(one)
            time.sleep(0.0003 * (place % 3))
        gathering.close()
        found = [pair for taker in takers for pair in taker.result(30)]
    assert sorted((id(one), text) for one, text in found) == sorted(
        (id(one), text) for one in added for text in range(3)
    )
    assert gathering._tokens == 0


def test_rows_that_come_in_parts() -> None:
    some = lot((1, 1), (1,), (1, 1))
    rows = np.arange(10.0, dtype=np.float32).reshape(5, 2)
    assert some.put(np.array([0, 3]), rows[[0, 3]]) is None
    first = some.put(np.array([1, 2]), rows[[1, 2]])
    assert first is not None
    assert first.places.tolist() == [0, 1]
    np.testing.assert_array_equal(first.rows, rows[:3])
    assert [(piece.begin, piece.end) for piece in Piece(some, 0, 5).alone()] == [(4, 5)]
    last = some.put(np.array([4]), rows[[4]])
    assert last is not None
    assert last.places.tolist() == [2]
    np.testing.assert_array_equal(last.rows, rows[3:])


@pytest.mark.parametrize(("field", "value"), [("queue", 0), ("body", 1.5), ("timeout", -1.0), ("texts", True)])
def test_limits_that_are_none(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}"):
        Limits(**{field: value})


def test_what_is_no_error_of_ours_says_nothing_of_itself() -> None:
    assert "secret" not in refusal_of(RuntimeError("secret")).words
    status, body = written(refusal_of(TimeoutError()), Dialect.TEI)
    assert (status, body["code"]) == (504, "timeout")
