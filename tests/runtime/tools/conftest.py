"""Folders of tiny models, and the command run on them: what the tests of the tools share."""

from __future__ import annotations

import io
import shutil
import sys
from typing import Any

import pytest

import headrace
from headrace.examples.demo_decoder import write_decoder
from headrace.runtime.tools import cli
from tests.command import Ran
from tests.tiny import build
from tests.words import bert_like, gpt_like


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny models with tokenizers, by name."""
    base = tmp_path_factory.mktemp("models")
    models = {
        "encoder": (build("bert"), bert_like()),
        "classifier": (
            build("bert", "AutoModelForSequenceClassification", num_labels=3, num_hidden_layers=1),
            bert_like(),
        ),
        "tagger": (build("bert", "AutoModelForTokenClassification", num_labels=3, num_hidden_layers=1), bert_like()),
        "decoder": (build("qwen3"), gpt_like()),
        "untypable": (build("llama-ignored-flag", num_hidden_layers=1), bert_like()),
    }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(base / name)
        tokenizer.save_pretrained(base / name)
    (base / "empty").mkdir()
    (base / "weightless").mkdir()
    shutil.copy(base / "encoder" / "config.json", base / "weightless")
    (base / "labels").mkdir()
    write_decoder(base / "labels")
    return {path.name: str(path) for path in base.iterdir()}


@pytest.fixture(scope="session")
def saved(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `headrace compile` writes of some of them: commands start from these in no time."""
    base = tmp_path_factory.mktemp("saved")
    for name in ("encoder", "classifier", "tagger"):
        options = {"pooling": "mean"} if name == "encoder" else {}
        headrace.compile(folders[name], target="reference", **options).save(base / name)
    return {f"saved_{path.name}": str(path) for path in base.iterdir()}


@pytest.fixture
def headrace_(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`headrace_("embed", folder, "text", stdin="lines")` runs the command in this process."""

    def run(*arguments: str, stdin: str | bytes = "") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(list(arguments))
        found = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), found.out, found.err)

    return run
