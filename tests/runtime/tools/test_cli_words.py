"""What the command line says names what it has: options, folders that are taken, targets that run here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.backends import TARGETS
from headrace.errors import TargetError
from headrace.runtime.tools.cli.app import app
from headrace.runtime.tools.cli.commands import doctor
from headrace.runtime.tools.cli.console import OPTION, option_words
from headrace.runtime.tools.cli.opening import Opening

ROOT = Path(__file__).parents[3]
COMMANDS = typer.main.get_command(app).commands
# Named in messages, and other libraries' own: of str.decode and of a processor.
# And what calls alone have, whose messages no command can bring about.
NOT_OPTIONS = {"errors", "return_tensors", "device"}


def commands(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, command in group.items():
        yield name, command
        yield from commands(getattr(command, "commands", {}))


def options() -> set[str]:
    return {name for _, command in commands(COMMANDS) for one in command.params for name in one.opts}


def _words(text: ast.JoinedStr) -> Iterator[ast.Constant]:
    return (part if isinstance(part, ast.Constant) else ast.Constant("X") for part in text.values)


def messages() -> Iterator[tuple[str, str]]:
    """The literal words of everything that is raised or warned of, and where."""
    for stage in ("frontend", "lowering", "backends", "runtime", "headrace"):
        for path in sorted((ROOT / stage).glob("*.py" if stage == "headrace" else "**/*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = isinstance(node, ast.Call) and ast.unparse(node.func)
                if called and re.search(r"(Error|warn|refusal|_refused)$", called):
                    for one in ast.walk(node):
                        if isinstance(one, ast.JoinedStr):
                            yield "".join(getattr(part, "value", "") for part in _words(one)), path.name
                        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                            yield one.value, path.name


def test_every_option_that_a_message_names_is_one_of_the_command_line() -> None:
    named = {
        (name, where)
        for text, where in messages()
        for name in re.findall(r"(?<![\w/.-])([a-z_]+)=(?!=)", text)
        if name not in NOT_OPTIONS
    }
    assert {name for name, _ in named} >= {"truncate", "trust", "tokenizer", "token_budget"}
    have = options()
    for name, where in sorted(named):
        assert option_words(f"{name}=x") == f"--{name.replace('_', '-')} x", where
        assert f"--{name.replace('_', '-')}" in have, where


def test_every_option_that_is_translated_exists() -> None:
    names = re.search(r"\((target\|.*?)\)", OPTION.pattern)
    assert names is not None
    assert {f"--{name.replace('_', '-')}" for name in names[1].split("|")} <= options()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("truncate=True to accept that, or truncate=False", "--truncate to accept that, or --no-truncate"),
        ('Pass prompt="" to embed without one', 'Pass --prompt "" to embed without one'),
        ("Pass trust=True if you know", "Pass --trust if you know"),
        ("Compile with token_budget=512 to begin so", "Compile with --token-budget 512 to begin so"),
        ("There is no folder /runs/model=bert/dtype=int8", "There is no folder /runs/model=bert/dtype=int8"),
        ("There is no folder model=bert/last", "There is no folder model=bert/last"),
        ("the labels are accepted by labels=, as", "the labels are accepted by --labels, as"),
        ('target="onnx:cuda" it is', "--target onnx:cuda it is"),
    ],
)  # fmt: skip
def test_words(said: str, shown: str) -> None:
    assert option_words(said) == shown


def test_trust_reaches_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace.json").touch()
    given: list[bool | None] = []
    monkeypatch.setattr(
        "headrace.runtime.artifact.saved_model.load", lambda folder, **options: given.append(options["trust"])
    )
    for trust in (False, True):
        Opening(str(tmp_path), trust=trust).compile("embed")
    assert given == [None, True]


@pytest.mark.parametrize("command", ["probe", "export", "record"])
def test_help_names_no_folder_that_is_refused(command: str) -> None:
    found = dict(commands(COMMANDS))[command]
    assert "wrote" not in next(one.help for one in found.params if one.name == "model")


def test_help_shows_no_python() -> None:
    for name, command in commands(COMMANDS):
        for text in (command.help or "", *(getattr(one, "help", None) or "" for one in command.params)):
            assert not re.search(r"\b(True|False|None|str|int)\b|\w=\w", text), (name, text)


def test_doctor_tells_targets_that_run_here_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(target: str) -> None:
        if target in ("cuda", "rocm"):
            raise TargetError("it is not here")

    monkeypatch.setattr("headrace.backends.backend", backend)
    found = doctor._targets().found
    assert found == f"{', '.join(name for name in TARGETS if name not in ('cuda', 'rocm'))}; not here: cuda, rocm"
