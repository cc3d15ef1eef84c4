"""Whatever stands for standard error, or nothing: what is said there never ends the work, nor goes anywhere else."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

import pytest

import headrace
from headrace import debug
from headrace.runtime.progress import bar
from headrace.runtime.tools.cli import console
from tests.conftest import Cache


class Logger:
    """What daemons put in the place of stderr: it takes lines, and has no other method."""

    def __init__(self) -> None:
        self.said = ""

    def write(self, text: str) -> None:
        self.said += text


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def unread() -> io.TextIOWrapper:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


STREAMS = {"none": lambda: None, "object": object, "logger": Logger, "closed": closed, "unread": unread}


@pytest.fixture(scope="module")
def lowered(tiny: Cache) -> Any:
    return headrace.lower(tiny("bert"), target="reference", pooling="mean")


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_every_call_answers(make: Any, lowered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", make())  # here: the runner puts its own back after the fixtures
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert lowered.compile()([[5, 6]])[0].shape == (32,)


@pytest.mark.parametrize("shown", [None, True, False])
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_bars(make: Any, shown: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.progress.PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", make())
    with bar("work", 2, shown) as line:
        time.sleep(0.02)
        line.say("more of it")
        line.advance(1)


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_notes_go_there_or_nowhere(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := make())
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    console.note("a note")
    debug.say(1, "a stage")
    assert capsys.readouterr().out == ""
    if isinstance(stream, Logger):
        assert stream.said == "headrace: a note\n[headrace] a stage\n"
