"""Every Python snippet of README.md runs, in order and in one process, on the real weights that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.runtime.tools.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_snippets_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the target reference: tests/conformance compiles the same weights."""
    compile_ = headrace.compile
    monkeypatch.setattr(headrace, "compile", lambda model, **o: compile_(model, **o | {"target": "reference"}))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, snippet in enumerate(SNIPPETS):
        exec(compile(snippet, f"README.md, Python snippet {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "(3, 384)" in said
    assert "GIVEN_NAME Sarah 0.9" in said
    assert "[(4, 35), (2, 35)]" in said
    assert "(2, 384) [(10, 384), (3, 384)]\n[ 101 2053  102]" in said
    assert "The task embed is not supported" in said
    assert names["found"].label.startswith("LABEL_")


def test_commands_are_those_of_the_command_line() -> None:
    import typer

    shown = set(re.findall(r"^headrace ([\w-]+)", README, re.MULTILINE))
    assert shown == set(typer.main.get_command(app).commands)


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_targets_and_dtypes_are_those_there_are() -> None:
    from headrace.backends import TARGETS

    assert set(re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| ", README, re.MULTILINE)) >= set(TARGETS)
