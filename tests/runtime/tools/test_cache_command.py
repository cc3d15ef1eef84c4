"""`headrace cache`: what is kept, and clearing it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.runtime.tools.cli.app import run
from headrace.runtime.tools.cli.console import run as ending
from headrace.utils.code_cache import fetch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CODE_CACHE", str(tmp_path / "code"))
    return tmp_path / "code"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    run(["cache", *arguments])
    return capsys.readouterr().out


def test_it_lists_and_clears(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{folder}: 0 kept" in said(capsys)
    fetch("key", "bert, embed", lambda: bytes(3 << 20))
    shown = said(capsys)
    assert f"{folder}: 1 kept, 3.0 MiB of 1024.0 MiB" in shown
    assert "bert, embed" in shown
    assert json.loads(said(capsys, "--json"))["what"] == "bert, embed"
    assert said(capsys, "--clear") == f"{folder}: 1 cleared, 3.0 MiB\n"
    assert "Nothing is kept." in said(capsys)


def test_it_says_why_it_is_not_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch("key", "", lambda: b"code")
    folder.chmod(0o777)
    assert f"It is not used: others can write to {folder}" in said(capsys)


def test_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADRACE_CODE_CACHE", "off")
    assert ending(lambda: run(["cache"])) == 2
    assert "HEADRACE_CODE_CACHE says so" in capsys.readouterr().err
