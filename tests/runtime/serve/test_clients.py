"""Clients of other servers, unchanged; and the lines of docs/serving.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.serve.conftest import Running

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
LINE = re.compile(r"curl (-N )?localhost:8000(/\S+) -H 'content-type: application/json' (?:\\\n  )?-d '(.*?)'")


@pytest.fixture(scope="module")
def two(models: Any) -> Iterator[Running]:
    """The server of the page."""
    made = Running({"minilm": models["minilm"], "ner": models["tagger"]})
    yield made
    made.close()


def test_the_lines_of_the_page(two: Running, models: Any) -> None:
    lines = LINE.findall(PAGE)
    assert len(lines) == PAGE.count("curl ") == 5
    for streams, path, body in lines:
        if not streams:
            assert two.post(path, **json.loads(body))
            continue
        with_words = json.loads(body.replace("Who are you?", "w5 w6"))
        alone = Running({"writer": models["writer"]})
        answer = alone.client.post(path, json=with_words)
        alone.close()
        assert answer.text.endswith("data: [DONE]\n\n")


def test_the_python_of_the_page(two: Running, capsys: Any) -> None:
    pytest.importorskip("openai")
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet.replace("http://127.0.0.1:8000", two.url), "docs/serving.md", "exec"), {})
    assert capsys.readouterr().out == "384\n"


def test_every_route_and_option_of_the_page_is_there() -> None:
    import typer

    from headrace.runtime.serve.app import ROUTES
    from headrace.runtime.tools.cli.app import app

    named = set(re.findall(r"(?<=[ `])(/[a-z][\w/]*)`", PAGE))
    assert {route.path for route in ROUTES} - {"/v1/models/{name:path}"} <= named
    command: Any = typer.main.get_command(app)
    options = {name for one in command.commands["serve"].params for name in one.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", PAGE)) <= options


def test_the_hubs_client(two: Running, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text-embeddings-inference's quick tour has it."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)  # which means our own server too
    client = hub.InferenceClient()
    text = "What is deep learning?"
    found = client.feature_extraction(text, model=f"{two.url}/embed")
    np.testing.assert_allclose(found, models["minilm"].embed([text]), atol=1e-5)
    cut = client.feature_extraction(text * 200, model=f"{two.url}/embed", normalize=False, truncate=True)
    assert cut.shape == (1, 384)


def test_coheres_client(running: Running, models: Any) -> None:
    cohere = pytest.importorskip("cohere")
    documents = ["w5 w6 w7", "w8", "w9 w9"]
    wanted = models["ranker"].rank("w5 w6", documents, top_k=2)
    for kind, more in ((cohere.ClientV2, {}), (cohere.Client, {"return_documents": True})):
        client = kind(api_key="none", base_url=running.url)
        found = client.rerank(model="ranker", query="w5 w6", documents=documents, top_n=2, **more).results
        assert [one.index for one in found] == [one.index for one in wanted]
        np.testing.assert_allclose([one.relevance_score for one in found], [one.score for one in wanted], atol=1e-5)


def test_litellm(running: Running, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network while it is imported
    litellm = pytest.importorskip("litellm")
    texts, documents = ["a cat", "tax law"], ["w5 w6 w7", "w8", "w9 w9"]
    found = litellm.embedding(model="openai/minilm", input=texts, api_base=f"{running.url}/v1", api_key="none")
    np.testing.assert_allclose([one["embedding"] for one in found.data], models["minilm"].embed(texts), atol=1e-5)
    ranked = litellm.rerank(
        model="cohere/ranker", query="w5 w6", documents=documents, top_n=2, api_base=f"{running.url}/v1/rerank",
        api_key="none",
    )  # fmt: skip
    wanted = models["ranker"].rank("w5 w6", documents, top_k=2)
    assert [one["index"] for one in ranked.results] == [one.index for one in wanted]
    np.testing.assert_allclose(
        [one["relevance_score"] for one in ranked.results], [one.score for one in wanted], atol=1e-5
    )
    said = litellm.completion(
        model="openai/writer", messages=[{"role": "user", "content": "w5 w6"}], max_tokens=3,
        api_base=f"{running.url}/v1", api_key="none", temperature=0,
    )  # fmt: skip
    assert said.usage.completion_tokens == 3
