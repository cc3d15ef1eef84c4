"""One server of small models for all tests of a session, at a port of its own."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import pytest

import headrace
from headrace.examples import folder
from headrace.runtime.serve.app import make_app
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.server import bound, server
from tests.words import bert_like, gpt_like

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


class Running:
    """A server on a thread, and a client of it."""

    def __init__(
        self, models: Mapping[str, Any], limits: Limits | None = None, beginning: Any = None, **options: Any
    ) -> None:
        """`beginning` is awaited in the loop before the server listens."""
        self.models, self.limits = models, limits or Limits()
        self._waiting = bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._waiting.getsockname()[1]}"
        self.app = make_app(models, self.limits, **options)
        self._server = server(self.app, self.limits)
        self._beginning = beginning
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server ended"
            time.sleep(0.01)
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    async def _serve(self) -> None:
        if self._beginning is not None:
            await self._beginning()
        await self._server.serve(sockets=[self._waiting])

    def post(self, path: str, **body: Any) -> Any:
        """The answer's JSON, of a request that must be answered."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()

    def refused(self, path: str, **body: Any) -> tuple[int, str]:
        """The status and words of a request that must not be answered."""
        answer = self.client.post(path, json=body)
        assert answer.status_code >= 400, answer.text
        found = answer.json()["error"]
        return answer.status_code, found if isinstance(found, str) else found["message"]

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        self._waiting.close()


@pytest.fixture(scope="session")
def models(tiny: Any) -> dict[str, Any]:
    """Real weights where there are small ones, else random."""
    labels = {"num_labels": 3}
    made = {
        "minilm": (folder("minilm"), {}),
        "tagger": (folder("rampart_ner"), {}),
        "sparse": (folder("splade_tiny"), {"task": "sparse_embed"}),
        "ranker": (tiny("bert", "AutoModelForSequenceClassification", num_labels=1), {"tokenizer": bert_like()}),
        "labeller": (tiny("bert", "AutoModelForSequenceClassification", **labels), {"tokenizer": bert_like()}),
        "writer": (tiny("qwen3", "AutoModelForCausalLM"), {"tokenizer": _writing(), "pooling": "last"}),
        "both": (
            tiny("qwen3", "AutoModelForCausalLM"),
            {"tokenizer": _writing(), "pooling": "last", "task": "generate", "beside": ("embed",)},
        ),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        return {name: headrace.compile(model, target="reference", **more) for name, (model, more) in made.items()}


def _writing() -> Any:
    made = gpt_like()
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="session")
def running(models: Any) -> Iterator[Running]:
    """The server of all models."""
    made = Running(models)
    yield made
    made.close()
