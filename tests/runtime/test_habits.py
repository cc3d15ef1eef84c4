"""What people are used to: answers as mappings, device=, pickling, what a notebook shows."""

from __future__ import annotations

import pickle
import re
import sys
import types
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.backends import TARGETS, target_of
from headrace.errors import ArtifactError, TargetError
from headrace.runtime.progress import Bar, bar
from headrace.runtime.tasks.classify import Classification
from headrace.runtime.tasks.fill_mask import Fill
from headrace.runtime.tasks.score import Ranked
from headrace.runtime.tasks.token_classify import Entity
from tests.words import bert_like

ANSWERS = [
    Ranked(3, 0.5, "a text"),
    Entity("PER", 0.9, 0, 5, "Sarah"),
    Classification("L1", 0.7, {"L0": 0.3, "L1": 0.7}),
    Fill("cat", 7, 0.5),
]


@pytest.fixture(scope="module")
def model(compiled: Any) -> Any:
    return compiled("bert", "AutoModel", "reference", tokenizer=bert_like(), pooling="mean")


@pytest.fixture(scope="module")
def saved(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_read_as_mappings(answer: Any) -> None:
    held = dict(answer)
    assert held == {**answer} == vars(answer)
    assert list(answer) == list(answer.keys()) == list(held)
    assert answer["score"] == answer.score == answer.get("score")
    assert answer.get("nothing") is None
    assert "score" in answer
    with pytest.raises(KeyError, match=r"'nothing'; there are .*score"):
        answer["nothing"]
    assert answer == type(answer)(**answer)
    assert repr(answer).startswith(f"{type(answer).__name__}(")


def test_a_line_that_says_what_a_model_is(model: Any) -> None:
    assert re.fullmatch(r"<CompiledModel [\w ]+: embed, token_embed; reference, float32>", repr(model))
    lowered = headrace.lower(_module(), target="reference")
    assert repr(lowered).startswith("<Lowered ")
    assert repr(lowered).endswith("; reference, float32>")


def _module() -> Any:
    from tests.tiny import build

    return build("bert")


def test_a_notebook_shows_the_page_in_a_frame(model: Any) -> None:
    """As a page of its own, which leaves the notebook's as it is."""
    shown = model._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert unescape(page) == model.explain("html")
    assert shown.startswith("<iframe ")


def test_what_came_from_a_folder_pickles_as_that_folder(model: Any, saved: Path) -> None:
    loaded = headrace.load(saved)
    held = pickle.dumps(loaded.counting_from(5))
    assert len(held) < 1000
    again = pickle.loads(held)
    np.testing.assert_array_equal(again.embed(["w5"]), model.embed(["w5"]))
    with pytest.raises(headrace.InputError, match="Text 6 is 5"):
        again.embed(["w5", 5])


def test_what_was_compiled_in_memory_says_what_to_do(model: Any) -> None:
    with pytest.raises(ArtifactError, match=r"<CompiledModel .*> was compiled in memory.*model.save\(FOLDER\)"):
        pickle.dumps(model)


@pytest.mark.parametrize(
    ("device", "target"),
    [
        (None, "auto"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        (-1, "cpu"),
        (torch.device("cpu"), "cpu"),
        ("cuda", "cuda"),
        (1, "cuda:1"),
        (torch.device("cuda", 2), "cuda:2"),
    ],
)
@pytest.mark.parametrize("hip", [None, "6.3"])
def test_devices_are_targets(device: Any, target: str, hip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert target_of(device) == (target.replace("cuda", "rocm") if hip else target)


@pytest.mark.parametrize("device", ["mps", "xpu:0", "cuda:x", "meta", True, "cpu:1"])
def test_devices_that_are_none(device: Any) -> None:
    with pytest.raises(TargetError, match=f"no target for device={str(device)!r}.*{', '.join(TARGETS)}"):
        target_of(device)


def test_a_device_where_a_target_is_taken(saved: Path) -> None:
    module = _module()
    assert headrace.lower(module, device="cpu").backend.name == "cpu"
    assert headrace.trace(module).lower(device="cpu").backend.name == "cpu"
    for refused in (headrace.compile, headrace.lower):
        with pytest.raises(TargetError, match="device='cpu' and target='reference' are both given"):
            refused(module, device="cpu", target="reference")
        with pytest.raises(TargetError, match="no target for device='mps'"):
            refused(module, device="mps")
    assert headrace.load(saved, device="cpu").target == "reference"
    with pytest.raises(ArtifactError, match="was compiled for reference, not cuda:1"):
        headrace.load(saved, device="cuda:1")


class ZMQInteractiveShell:
    """As Jupyter's is called, by which rich knows it."""


def test_progress_is_seen_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can be drawn: rich does so by ipywidgets, and warns without them."""
    import builtins

    with bar("embed: texts", 3) as hidden:
        assert not isinstance(hidden, Bar)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    found: dict[str, Any] = {"ipywidgets": None}
    monkeypatch.setattr("headrace.runtime.progress.find_spec", lambda name: found[name])
    with bar("embed: texts", 3) as hidden:
        assert not isinstance(hidden, Bar)
    found["ipywidgets"] = types.SimpleNamespace()
    with bar("embed: texts", 3) as shown:
        assert isinstance(shown, Bar)


def test_progress_counts_the_whole_work(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator of known length is one bar, and every text counts that is there twice."""
    from headrace.runtime import progress
    from headrace.runtime.methods import iterating

    counted: list[Any] = []

    class Counting(progress.Nothing):
        def advance(self, count: int) -> None:
            counted[-1][1] += count

    def begun(what: str, total: int | None) -> Any:
        counted.append([total, 0])
        return Counting()

    monkeypatch.setattr(progress, "Bar", begun)
    monkeypatch.setattr(iterating, "AHEAD", 2)
    model.embed(["w5", "w6", "w5"], progress=True)
    list(model.embed_iter(["w5", "w6", "w5", "w7", "w7"], progress=True))
    list(model.embed_iter(iter(["w5", "w6"]), progress=True))
    assert counted == [[3, 3], [5, 5], [None, 2]]
