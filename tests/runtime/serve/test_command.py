"""`headrace serve` as a process: it says where it listens, answers, and ends in good order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.examples import folder
from headrace.runtime.tools.cli.commands.serve import _named

COMMAND = [sys.executable, "-m", "headrace.runtime.tools.cli", "serve"]


@pytest.fixture(scope="module")
def process(tiny: Any, tmp_path_factory: Any) -> Iterator[tuple[Any, str]]:
    from tests.words import bert_like

    labeller = tmp_path_factory.mktemp("served") / "labeller"
    tiny("bert", "AutoModelForSequenceClassification", num_labels=3).save_pretrained(labeller)
    bert_like().save_pretrained(labeller)
    options = ["--port", "0", "--target", "reference", "--timeout", "60"]
    made = subprocess.Popen(
        [*COMMAND, str(labeller), f"ner={folder('rampart_ner')}", *options],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"HEADRACE_API_KEY": "alpha"},
    )  # fmt: skip
    assert made.stderr is not None
    said = ""
    while "serving" not in said:
        said = made.stderr.readline()
        assert said, "the command ended"
    url = re.search(r"http://[\d.:]+", said)
    assert url, said
    assert "serving labeller, ner at" in said
    yield made, url[0]
    made.kill()
    made.wait()


def test_it_answers_and_ends(process: tuple[Any, str]) -> None:
    made, url = process
    headers = {"authorization": "Bearer alpha"}
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        names = [one["id"] for one in client.get("/v1/models").json()["data"]]
        assert names == ["labeller", "ner"]
        found = client.post("/v1/entities", json={"input": "Call Sarah Connor."}).json()
        assert [one["label"] for one in found["data"][0]["entities"]] == ["GIVEN_NAME", "SURNAME"]
        assert client.post("/predict", json={"inputs": "w5"}).json()[0]["label"].startswith("LABEL_")
    assert httpx2.get(f"{url}/v1/models").status_code == 401
    made.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in made.stderr if line.startswith("{")]
    assert made.wait(30) == 128 + signal.SIGTERM
    paths = [line["path"] for line in lines if line["message"] == "request"]
    assert paths == ["/v1/models", "/v1/entities", "/predict", "/v1/models"]


def test_models_are_called_by_their_folders_or_as_it_is_said() -> None:
    assert _named(["a/minilm", "other=b/minilm", "hub/name"]) == {
        "minilm": "a/minilm", "other": "b/minilm", "name": "hub/name",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a/minilm", "b/minilm"], "Two models are called minilm"),
        (["none", "--log-level", "loud"], "--log-level is loud"),
        (["none", "--host", "256.0.0.1"], "cannot be listened at"),
        (["none", "--queue", "0"], "Invalid value for '--queue'"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], words: str, capsys: Any) -> None:
    from headrace.runtime.tools.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", *arguments] if "--port" not in arguments else ["serve", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from headrace.errors import InputError
    from headrace.runtime.serve.server import bound

    first = bound("127.0.0.1", 0)
    first.listen()
    with pytest.raises(InputError, match="cannot be listened at"):
        bound("127.0.0.1", first.getsockname()[1])
    first.close()
