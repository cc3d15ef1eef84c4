"""A task is two files: one is added to a copy of the package, and everything that lists or serves tasks has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.ir import TASK_RULES
from headrace.runtime.tasks.interface import Answering
from headrace.runtime.tasks.registry import answering

ROOT = Path(__file__).parents[3]
STAGES = ("frontend", "lowering", "backends", "runtime", "examples")
# Its line and its rules.
RULES = 'Task.TALLY: TaskRules("tally tokens", (OutputKind.HIDDEN,), (Head.TOKEN,), needs=Needs.EVERY_TOKEN)'
LISTED = {'    EMBED = "embed"\n': '    EMBED = "embed"\n    TALLY = "tally"\n', "] = {\n": f"] = {{\n    {RULES},\n"}
MODULE = '''"""tally: how many tokens a text has."""

from typing import Annotated, Any

from headrace.runtime.tasks.interface import Answering, Call, Command


def tally(call: Call, texts: Any, least: Annotated[int, "No fewer than so many."] = 0) -> list[int]:
    """The rows of each text."""
    return [max(least, len(row)) for row in call.rows(call.drawn(texts))]


TASK = Answering(tally, Command('The tokens of each text: {"tokens": ...}.', lambda count: {"tokens": count}))
'''
# Run where only the copy is Headrace. Without torch or a model: what lists tasks needs neither.
ASKED = """
import json
import runpy
import sys

sys.path.insert(0, sys.argv[1])
import typer
from tests.synthetic import facts

from headrace.ir import AttentionType, Head, Prefill, Route, State, Task
from headrace.runtime.tasks.registry import answering
from headrace.runtime.tools.cli.app import app
from headrace.runtime.tools.inspect.report import explain
from headrace.tasks import Tasks, decide, select

route = Route(State.ENCODER_ONLY, "B3", "bidirectional")
made = facts(AttentionType.ENCODER_ONLY, head=Head.TOKEN, route=route, prefill=Prefill.SINGLE_PASS)
made = made.with_(tasks=decide(made))
command = typer.main.get_command(app).commands["tally"]


class Rows:
    task, drawn, rows = Task("tally"), staticmethod(list), staticmethod(lambda texts: [text.split() for text in texts])


print(json.dumps({
    "file": sys.modules["headrace"].__file__,
    "tasks": list(Tasks(made.decision.tasks)),
    "default": select(made, None)[0],
    "explain": explain(made),
    "page": explain(made, "html"),
    "command": [command.help, *(one.name for one in command.params)],
    "table": runpy.run_path(sys.argv[1] + "/docs/make_tasks.py")["table"](),
    "answers": answering(Task("tally")).answer(Rows, ["a b", "c"], least=0),
    "torch": "torch" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a package says of itself that two files were added to."""
    copy = tmp_path_factory.mktemp("toy")
    for name in ("headrace", *STAGES):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docs/make_tasks.py", "tests/synthetic.py"):
        (copy / name).parent.mkdir()
        shutil.copy(ROOT / name, copy / name)
    listing = copy / "headrace" / "ir" / "task.py"
    text = listing.read_text()
    for there, instead in LISTED.items():
        assert text.count(there) == 1, there
        text = text.replace(there, instead)
    listing.write_text(text)
    (copy / "runtime" / "tasks" / "tally.py").write_text(MODULE)
    ran = subprocess.run(
        [sys.executable, "-I", "-c", ASKED, str(copy)], capture_output=True, text=True, cwd=copy, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["file"].startswith(str(copy))
    return found


def test_discovery_has_it(toy: dict[str, Any]) -> None:
    """C4: `.tasks` is what the one function decided; C7: first in the list, it is the head's default."""
    assert toy["tasks"] == ["tally", "token_classify"]
    assert toy["default"] == "tally"


def test_the_command_line_has_it_with_its_options(toy: dict[str, Any]) -> None:
    says, *options = toy["command"]
    assert says == 'The tokens of each text: {"tokens": ...}.'
    assert options[:3] == ["model", "texts", "least"]
    assert "batch_size" in options
    assert "pooling" not in options


def test_explain_says_what_it_does(toy: dict[str, Any]) -> None:
    assert "it can tally tokens and label tokens" in " ".join(toy["explain"].split())
    assert "tally tokens and label tokens" in toy["page"]


def test_the_table_of_tasks_has_it(toy: dict[str, Any]) -> None:
    row = "| tally | tally tokens | a token head | every token of a sequence in one step | `headrace tally` |"
    assert row in toy["table"].splitlines()


def test_its_module_answers(toy: dict[str, Any]) -> None:
    assert toy["answers"] == [2, 1]
    assert not toy["torch"]


@pytest.mark.parametrize("task", TASK_RULES)
def test_a_task_has_a_module(task: Any) -> None:
    assert isinstance(answering(task), Answering)
