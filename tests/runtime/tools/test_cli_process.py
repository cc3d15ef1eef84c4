"""The command among other processes: streams that are closed or full, and signals, from its first moment on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.tools.cli import signals

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `headrace` is the command."""
    function = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}\n'
    command = ["bash", "-o", "pipefail", "-c", function + line]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("headrace embed /nowhere <&-", 2, "", "headrace: Nothing to read: give texts after the model"),
        ("headrace embed /nowhere w5 >&-", 2, "", "headrace: Standard output is closed: the answers have nowhere"),
        ("headrace --version >&-", 2, "", "headrace: the answers cannot be written: standard output is closed"),
        ("headrace --version >/dev/full", 2, "", "headrace: the answers cannot be written: No space left"),
        ("headrace --version <&- 2>&-", 0, "headrace ", ""),
        ("headrace embed 2>&-", 2, "", ""),
        ("headrace embed 2>/dev/full", 2, "", ""),
        ("headrace embed 2> >(true)", 2, "", ""),
        ("headrace embed <&- >&- 2>&-", 2, "", ""),
        ("headrace --help | true; test ${PIPESTATUS[0]} -le 1", 0, "", ""),
    ],
)
def test_streams_that_are_closed_or_full(line: str, code: int, out: str, err: str) -> None:
    ran = shell(line)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.startswith(out)
    assert ran.stderr.startswith(err)
    assert ran.stderr.count("\n") == bool(err)


@pytest.fixture
def heeded() -> Iterator[None]:
    """What starts tests in the background may have SIGINT ignored, which the command leaves so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_ends_it_whatever_becomes_of_the_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def command() -> int:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as stopped:
            raise ImportError("half imported") from stopped
        return 0

    assert signals.run(command) == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("heeded")
def test_a_signal_that_python_drops_is_sent_anew() -> None:
    class Thing:
        pass

    def command() -> int:
        thing = Thing()
        _ = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        time.sleep(5)
        return 0

    began = time.monotonic()
    assert signals.run(command) == 130
    assert time.monotonic() - began < 4


def test_a_signal_that_is_to_be_ignored_is() -> None:
    """As `nohup` has it, and shells have it of what runs in the background."""

    def command() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert signals.run(command) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_amid_an_import(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    code = "from headrace.runtime.tools.cli import signals\nsignals.run(lambda: __import__('slow') and 0)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (ran.returncode, ran.stderr) == (143, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_at_any_moment(number: signal.Signals) -> None:
    draw = random.Random(0)
    for _ in range(20):
        command = [sys.executable, "-m", "headrace", "doctor"]  # imports torch
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT) as ran:
            time.sleep(draw.uniform(0.15, 2))  # before that Python itself starts
            ran.send_signal(number)
            _, said = ran.communicate()
        assert (ran.returncode, said) in {(128 + number, b""), (0, b"")}
