"""The examples of CONTRIBUTING.md: each is added as the page says, in this process, and does what the page says."""

from __future__ import annotations

import copy
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import headrace
from headrace import graphs
from headrace.backends import TARGETS
from headrace.errors import VerifyError
from headrace.ir import Stage, Task
from headrace.ir import passes as ir_passes
from headrace.ir.passes import run_passes
from headrace.lowering.pipeline import prepare
from tests.tiny import fed, token_ids

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (.*?)\n(.*?)```", PAGE, re.DOTALL))
FILES = [path for path in BLOCKS if path.endswith(".py")]
REQUESTS = [[5, 6, 7, 8], [9, 10]]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`added(path)` imports a file of the page as the module that it would be in its folder."""
    room = tmp_path_factory.mktemp("contributed")

    def module(path: str) -> ModuleType:
        return importlib.import_module(name_of(path))

    with pytest.MonkeyPatch.context() as patch:
        for path in FILES:
            assert not (ROOT / path).exists(), f"{path} exists now: the page needs another example"
            file = room / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(BLOCKS[path])
            package = importlib.import_module(name_of(path).rpartition(".")[0])
            patch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
        yield module


def name_of(path: str) -> str:
    """The module's name: the stages install below `headrace`."""
    return "headrace." + path.removeprefix("headrace/").removesuffix(".py").replace("/", ".")


def test_every_kind_has_an_example() -> None:
    assert FILES == ["lowering/optimise/drop_ones.py", "headrace/ops/activation.py", "backends/eager.py"]
    assert len(BLOCKS) == PAGE.count("```python")


def test_the_examples_read_as_our_code_does(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / Path(path).name).write_text(BLOCKS[path])
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path]
        ran = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


def test_the_rooms_and_files_that_the_page_names_are_there() -> None:
    for place in re.findall(r"`((?:headrace|frontend|lowering|backends|runtime|docs|tests|examples)/[\w/.]*)`", PAGE):
        assert (ROOT / place.replace("NAME", "embed")).exists(), place


def products_by_one(program: Any) -> int:
    nodes = [node for node in program.graph.graph.nodes if node.target is torch.ops.aten.mul.Tensor]
    return sum(not hasattr(node.args[1], "name") and node.args[1] == 1 for node in nodes)


def test_the_pass_runs_and_is_verified(added: Any, analysed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen 3 scales its rotary tables by one."""
    drop = added(FILES[0]).DropOnes()
    before = prepare(analysed("qwen3"), Task.EMBED)
    verify = Mock(wraps=ir_passes.verify)
    monkeypatch.setattr(ir_passes, "verify", verify)
    after = run_passes(before, (drop,))
    verify.assert_called_once_with(after, "ones")
    assert (products_by_one(before), products_by_one(after)) == (2, 0)
    inputs = fed(before, token_ids(6, batch=2))
    (one,), (other,) = (graphs.run(program.graph, inputs)[0] for program in (before, after))
    torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_the_pass_leaves_others_alone_and_a_breach_is_named(added: Any, analysed: Any) -> None:
    drop = added(FILES[0]).DropOnes()
    program = prepare(analysed("bert"), Task.EMBED)
    assert products_by_one(program) == 0
    assert drop(program) is program
    broken = program.with_(attention=program.nodes.attention[::-1])
    assert broken.stage is Stage.LOWERED
    with pytest.raises(VerifyError, match="After the pass ones the program breaks"):
        run_passes(broken, (drop,))


def test_the_operator_is_exported_interpreted_and_saved(added: Any, tiny: Any, tmp_path: Path) -> None:
    """In a model's code, in place of transformers' activation of the same meaning."""
    operator = added(FILES[1]).relu_squared

    class Activation(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operator(x)

    usual = tiny("bert", hidden_act="relu2")
    own = copy.deepcopy(usual)
    for layer in own.encoder.layer:
        layer.intermediate.intermediate_act_fn = Activation()
    program = headrace.trace(own).program
    called = [node for node in program.graph.graph.nodes if node.target is torch.ops.headrace.relu_squared.default]
    assert len(called) == len(own.encoder.layer)
    model, plain = (headrace.compile(one, target="reference", pooling="mean") for one in (own, usual))
    model.save(tmp_path / "saved")
    found = model(REQUESTS, task="embed")
    for one, other in zip(found, headrace.load(tmp_path / "saved")(REQUESTS, task="embed"), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(found, plain(REQUESTS, task="embed"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_backend_answers_as_reference_does(
    added: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, place),) = re.findall(r'"(\w+)": "(.*)"', BLOCKS["backends/__init__.py, in TARGETS"])
    assert place.startswith(name_of(FILES[2]) + ":")
    added(FILES[2])
    monkeypatch.setitem(TARGETS, name, place)
    model, reference = (headrace.compile(tiny("bert"), target=target, pooling="mean") for target in (name, "reference"))
    assert model.target == name
    model.save(tmp_path / "saved")
    again = headrace.load(tmp_path / "saved")
    for one, other, read in zip(*(each(REQUESTS, task="embed") for each in (model, reference, again)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
        np.testing.assert_array_equal(one, read)
