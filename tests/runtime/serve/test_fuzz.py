"""Bodies that are none: each is refused, and the server lives on as it was."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What each route that takes a body answers, and of which model.
SOUND: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "minilm", "input": "x"},
    "/v1/completions": {"model": "writer", "prompt": "w5", "max_tokens": 1},
    "/v1/chat/completions": {"model": "writer", "messages": [{"role": "user", "content": "w5"}], "max_tokens": 1},
    "/v1/rerank": {"model": "ranker", "query": "w5", "documents": ["w6"]},
    "/v1/score": {"model": "ranker", "text_1": "w5", "text_2": "w6"},
    "/v1/classify": {"model": "labeller", "input": "w5"},
    "/v1/entities": {"model": "tagger", "input": "x"},
    "/embed": {"model": "minilm", "inputs": "x"},
    "/embed_all": {"model": "minilm", "inputs": "x"},
    "/embed_sparse": {"model": "sparse", "inputs": "x"},
    "/rerank": {"model": "ranker", "query": "w5", "texts": ["w6"]},
    "/predict": {"model": "labeller", "inputs": "w5"},
    "/tokenize": {"model": "minilm", "inputs": "x"},
}
# No field takes these: strings are not numbers, numbers not strings, and no list holds them.
WRONG = [{}, {"a": 1}, -1, -3.5, 10**30, 1e308, [[]], [[[]]], [None], [{}], [True], ["x", 1], [["x", 1]], [[["x"]]]]
REQUIRED = {"input", "prompt", "messages", "query", "documents", "text_1", "text_2", "inputs", "texts"}
RAW = [
    b"", b"{", b"}", b"null", b"[]", b"0", b'"x"', b"\x00", b"\xff\xfe", b"{'a': 1}", b"NaN", b"[" * 100_000,
    b'{"a":' * 50_000, b'{"input": "\\ud800"}', b"\xef\xbb\xbf{}", b'{"input": "x"', b'{"input": "x"}}', b"--",
]  # fmt: skip


def bodies(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Routes and bodies that none of them accepts."""
    chance = random.Random(seed)
    for _ in range(count):
        path = chance.choice(list(SOUND))
        yield path, chance.choice(MALFORMED)(chance, dict(SOUND[path]))


def _raw(chance: random.Random, body: dict[str, Any]) -> bytes:
    return chance.choice(RAW)


def _cut(chance: random.Random, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    return text[: chance.randrange(len(text))]


def _bytes(chance: random.Random, body: dict[str, Any]) -> bytes:
    return b"\xfe" + chance.randbytes(chance.randrange(400))


def _wrong(chance: random.Random, body: dict[str, Any]) -> bytes:
    body[chance.choice([name for name in body if name in REQUIRED])] = chance.choice(WRONG)
    return json.dumps(body).encode()


def _lacking(chance: random.Random, body: dict[str, Any]) -> bytes:
    del body[chance.choice([name for name in body if name in REQUIRED])]
    return json.dumps(body).encode()


def _unknown(chance: random.Random, body: dict[str, Any]) -> bytes:
    body["".join(chance.choices("abcdefgh_é\u2028", k=12))] = chance.choice([None, *WRONG])
    return json.dumps(body).encode()


def _no_model(chance: random.Random, body: dict[str, Any]) -> bytes:
    body["model"] = chance.choice(["none", "", "../minilm", "x" * 5000, 1, ["minilm"], {}])
    return json.dumps(body).encode()


MALFORMED = (_raw, _cut, _bytes, _wrong, _lacking, _unknown, _no_model)


def test_the_sound_bodies_are_answered(running: Any) -> None:
    """Else those that are made of them would be refused for what they share."""
    for path, body in SOUND.items():
        running.post(path, **body)


@pytest.mark.parametrize(
    "count", [200, pytest.param(5000, marks=pytest.mark.slow(reason="the same, 25 times as many"))]
)
def test_malformed_bodies(running: Any, count: int) -> None:
    headers = {"content-type": "application/json"}
    for path, body in bodies(100, seed=1):  # what is made once is made
        running.client.post(path, content=body, headers=headers)
    before = resident()
    for path, body in bodies(count):
        answer = running.client.post(path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500, (path, body[:200], answer.status_code, answer.text)
        assert answer.json()["error"]
        assert "Traceback" not in answer.text
        assert len(answer.content) < 2000
    assert resident() < before + (16 << 20)
    running.post("/v1/embeddings", **SOUND["/v1/embeddings"])


def resident() -> int:
    """Bytes of this process in memory, the server among them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
