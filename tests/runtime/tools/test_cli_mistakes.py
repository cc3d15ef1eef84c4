"""One line with exit code 2 for every mistake of a user, and for what is missing from the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.tools import cli
from tests.command import BLOCKED, REFERENCE, ROOT, process, refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "/no/such/folder"), ("There is no folder /no/such/folder",)),
        (("embed", "{empty}", "w5"), ("has no config.json",)),
        (("embed", "{weightless}", "w5"), ("holds no weights",)),
        (("explain", "{untypable}"), ("attention", "contradicts")),
        (("embed", "{untypable}", "w5"), ("attention", "contradicts")),
        (
            ("tasks", "{encoder}", "--task", "translate"),
            ("The task translate is not supported", "Choose one of: embed"),
        ),
        (("compile", "{encoder}", "{empty}", "--task", "paint", *REFERENCE), ("The task paint is not supported",)),
        (("classify", "{saved_encoder}", "w5"), ("The task classify is not supported", "Choose one of: embed")),
        (("token-classify", "{labels}", "w5", *REFERENCE), ("To make it work", "--prefill single_pass")),
        (("embed", "{saved_encoder}", "w5 " * 99), ("has 101 tokens", "--truncate")),
        (("embed", "{encoder}", "w5", "--max-length", "999", *REFERENCE), ("max_length is 999", "at most 64")),
        (("embed", "{saved_encoder}", "w5", "--dimensions", "99"), ("from 1 to 32",)),
        (("embed", "{encoder}", "w5", "--pooling", "median", *REFERENCE), ("There is no pooling 'median'",)),
        (("embed", "{encoder}", "w5", "--dtype", "int4", *REFERENCE), ("int4", "float32")),
        (("embed", "{encoder}", "w5", "--prefill", "whole", *REFERENCE), ("single_pass",)),
        (("embed", "{encoder}", "w5", "--target", "abacus"), ("There is no target 'abacus'",)),
        (("token-classify", "{saved_tagger}", "w5", "--aggregation", "sum"), ("simple",)),
        (("embed", "{encoder}", "w5", "--batch-size", "0"), ("--batch-size",)),
        (("embed", "{encoder}", "w5", "--input", "x"), ("give one of them",)),
        (("embed", "{encoder}", "--input", "/no/such/file"), ("/no/such/file cannot be read: No such file",)),
        (("explain", "{encoder}", "--html", "/no/such/place/x.html"), ("cannot be written",)),
        (("embed", "{encoder}", "--wrong"), ("No such option: --wrong", "--help")),
        (("embed",), ("Missing argument", "--help")),
        (("paint",), ("No such command 'paint'", "--help")),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line(
    headrace_: Any, folders: dict[str, str], saved: dict[str, str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    named = [argument.format(**folders, **saved) if argument.startswith("{") else argument for argument in arguments]
    refused(headrace_(*named), *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("42", ("Line 2 of standard input is a JSON number, 42", "--plain")),
        ("true", ("JSON boolean",)),
        ("null", ("JSON null",)),
        ('["w5", "w6"]', ("JSON list",)),
        ('{"text": 42}', ('"text" is a JSON number, 42',)),
        ('{"text": "w5", "pair": ["w6"]}', ('"pair" is a JSON list',)),
        ('{"txt": "w5"}', ('without "text"', "txt")),
        ('{"text": "w5"', ("begins as a JSON object",)),
        (b"w5 \xff", ("Line 2 of standard input is not UTF-8",)),
        ('{"text": "w5", "pair": "w6"}', ("Line 2 of standard input is a pair",)),
    ],
)
def test_a_line_without_a_text_is_refused_before_the_model_is_loaded(
    headrace_: Any, line: str | bytes, words: tuple[str, ...]
) -> None:
    data = b"w5\n" + (line.encode() if isinstance(line, str) else line) + b"\n"
    refused(headrace_("embed", "/nowhere", stdin=data), *words)


def test_a_half_surrogate_is_refused(headrace_: Any, saved: dict[str, str]) -> None:
    refused(headrace_("embed", saved["saved_encoder"], stdin='"\\ud800"'), "surrogate")


def test_no_compiler(headrace_: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(headrace_("embed", folders["encoder"], "w5"), "CXX names no-such-compiler", "--target reference")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(headrace_("embed", folders["encoder"], "w5"), "no C++ compiler is on the path", "apt-get install g++")
    assert headrace_("explain", folders["encoder"]).code == 0


@pytest.mark.parametrize("command", ["explain", "tasks", "probe", "embed", "classify", "token-classify"])
def test_without_torch(command: str, folders: dict[str, str]) -> None:
    texts = ["w5"] if command in ("embed", "classify", "token-classify") else []
    refused(process(command, folders["encoder"], *texts, before=BLOCKED), 'pip install "headrace[torch]"')


def test_without_torch_the_demo_says_so_too(tmp_path: Path) -> None:
    refused(process("demo", "--out", str(tmp_path / "x.html"), before=BLOCKED), 'pip install "headrace[torch]"')


def test_ctrl_c(headrace_: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.runtime.tools.cli.opening.Opening.trace", interrupted)
    ran = headrace_("explain", folders["encoder"])
    assert (ran.code, ran.err) == (130, "")


def test_a_closed_pipe_is_quiet() -> None:
    command = f'"{sys.executable}" -m headrace.runtime.tools.cli doctor | true'
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, env=env, check=False)
    assert ran.stderr == ""


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, folders: dict[str, str]) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("headrace.runtime.tools.cli.opening.Opening.trace", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["explain", folders["encoder"]])
