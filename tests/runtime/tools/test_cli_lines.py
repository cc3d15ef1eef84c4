"""Lines as they come: whoever waits for an answer gets it, and a bad line late costs none of those before it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.runtime.tools.cli import lines
from headrace.runtime.tools.cli.lines import Source
from headrace.runtime.tools.cli.waiting import PIECE, waiting
from tests.command import Ran
from tests.tiny import build
from tests.words import bert_like

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved model that embeds."""
    folder, made = tmp_path_factory.mktemp("model"), build("bert", num_hidden_layers=1)
    compiled = headrace.compile(made, tokenizer=bert_like(), target="reference", pooling="mean")
    return str(compiled.save(folder / "saved"))


class Pipe:
    """A pipe and what reads its lines."""

    def __init__(self, most: int = 1024) -> None:
        reading, self.writing = os.pipe()
        self.lists = waiting(os.fdopen(reading, "rb"), most)

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)


def test_lines_that_wait_come_together() -> None:
    pipe = Pipe()
    pipe.write(b"one\ntwo\nthr")
    assert next(pipe.lists) == [b"one", b"two"]
    pipe.write(b"ee\n\nfour")
    assert next(pipe.lists) == [b"three", b""]
    os.close(pipe.writing)
    assert list(pipe.lists) == [[b"four"]]


def test_no_more_than_asked_for() -> None:
    pipe = Pipe(most=2)
    pipe.write(b"1\n2\n3\n4\n5\n")
    assert [next(pipe.lists) for _ in range(3)] == [[b"1", b"2"], [b"3", b"4"], [b"5"]]


def test_a_line_is_waited_for() -> None:
    pipe = Pipe()
    threading.Timer(0.1, pipe.write, (b"late\n",)).start()
    assert next(pipe.lists) == [b"late"]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"a", b"a\n", b"a\n\n\nb", b"\r\n", b"long " * PIECE + b"\nb", b"x\n" * (PIECE + 7)]
)
def test_lines_are_those_of_the_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(data)
    with (tmp_path / "lines").open("rb") as stream:
        lists = list(waiting(stream, 1000))
    assert all(0 < len(one) <= 1000 for one in lists)
    with (tmp_path / "lines").open("rb") as stream:
        assert [line for one in lists for line in one] == [line.removesuffix(b"\n") for line in stream]


def test_a_pipe_that_does_not_block() -> None:
    """As another program may have left it: nothing there is not the end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    lists = waiting(os.fdopen(reading, "rb"), 9)
    threading.Timer(0.1, os.write, (writing, b"late\n")).start()
    assert next(lists) == [b"late"]


def test_good_lines_before_a_bad_one_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of the first list: no model is loaded for them."""
    monkeypatch.setattr(lines, "CHUNK", 2)
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\n42\nd\n")
    given = Source([], file).chunks()
    assert [next(given), next(given)] == [["a", "b"], ["c"]]
    with pytest.raises(lines.InputError, match=r"^Line 4 of .*lines is a JSON number"):
        next(given)


def test_the_error_says_where_to_go_on(
    headrace_: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(lines, "CHUNK", 2)
    file = tmp_path / "lines"
    file.write_text("w5\nw6\nw7\n42\n")
    ran: Ran = headrace_("embed", model, "--input", str(file))
    assert (ran.code, ran.out.count("\n")) == (2, 3)
    assert "headrace: After 3 texts: Line 4 of" in ran.err
    assert f"The lines before it are answered; go on from line 4 (tail -n +4 {file})." in ran.err
    ran = headrace_("embed", model, "w5", "w6 " * 99, "w7")
    assert (ran.code, ran.out.count("\n")) == (2, 1)
    assert "After 1 texts: Text 2 has 10" in ran.err
    assert "The texts before it are answered; go on from text 2." in ran.err


def test_a_coprocess_gets_each_answer(model: str) -> None:
    command = [sys.executable, "-m", "headrace", "embed", model]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as ran:
        assert ran.stdin is not None
        assert ran.stdout is not None
        for line in ("w5 w6\n", "w7\n"):
            ran.stdin.write(line)
            ran.stdin.flush()
            assert ran.stdout.readline().startswith('{"embedding": [')
