"""Processes that are forked off while other threads work: each answers as its parent does, and none waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.runtime.text.prefetch import made_ahead
from headrace.utils.forks import Guard
from headrace.utils.scratch import Scratch
from tests.tiny import build
from tests.words import bert_like

# Threads of torch, of the tokenizers library and of ours are all there when the process forks. How long a child takes
# is the machine's affair. One that hangs has no thread that is ready to run, or it runs for ever.
FORKS = """
import faulthandler, gc, os, resource, signal, sys, threading, time
import numpy as np
import headrace

model = headrace.load(sys.argv[1], trust=True)
texts = [f"w{i % 40} w{7 * i % 40} w5 w6" for i in range(150)]
wanted = model.embed(texts)

def work():
    while True:
        model.embed(texts)

def answers(rest):
    np.testing.assert_allclose(model.embed(texts), wanted, atol=1e-5)
    if rest is not None:
        np.testing.assert_allclose(list(rest), wanted[1:], atol=1e-5)

def asleep(child):
    try:
        threads = [open(f"/proc/{child}/task/{one}/stat").read() for one in os.listdir(f"/proc/{child}/task")]
    except OSError:  # one has just ended
        return False
    return all(one.rpartition(")")[2].split()[0] == "S" for one in threads)

def exit_code(child):
    slept = 0
    while slept < 1000:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
        slept = slept + 1 if asleep(child) else 0
    os.kill(child, signal.SIGUSR1)
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    return "it waits for ever"

for number in range(int(sys.argv[2])):
    if number == 1:  # the first child is forked off from idle threads, and only ends
        for thread in [threading.Thread(target=work, daemon=True) for _ in range(2)]:
            thread.start()
    time.sleep(0.013 * (number % 7) if number else 0.5)
    begun = model.embed_iter(texts) if number % 3 == 1 else None
    if begun is not None:
        next(begun)
    if not (child := os.fork()):
        faulthandler.register(signal.SIGUSR1)
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
        try:
            if number:
                answers(begun)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        if number % 2:
            os._exit(0)
        del begun, model
        gc.collect()
        sys.exit()
    assert (code := exit_code(child)) == 0, (number, code)
print("answered")
sys.stdout.flush()
os._exit(0)
"""


def forked(folder: Path, count: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", FORKS, str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "answered\n", done.stderr[-3000:]


@pytest.mark.parametrize("target", ["reference", "onnx"])
def test_a_child_answers(target: str, tmp_path: Path) -> None:
    forked(_saved(target, tmp_path), 3)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reference", "onnx", "cpu"])
def test_many_children_answer(target: str, tmp_path: Path) -> None:
    forked(_saved(target, tmp_path), 24)


def _saved(target: str, tmp_path: Path) -> Path:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    model = headrace.compile(build("bert"), target=target, tokenizer=bert_like(), pooling="mean")
    return model.save(tmp_path / "saved")


def in_child(run: str) -> str:
    """What a process prints whose child `run` is executed in."""
    code = f"import os, sys, threading\n{run}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_guard_is_free_in_a_child() -> None:
    """Held by another thread, by the one that forks, and by one that a fork waits for."""
    run = """
import time
from headrace.utils.forks import Guard
held, own, settled = Guard(), Guard(), Guard(settles=True)
taken = threading.Event()
def hold():
    with held.lock:
        taken.set()
        time.sleep(60)
def settle():
    with settled.lock:
        taken.set()
        time.sleep(0.3)
        done.append(1)
done = []
threading.Thread(target=hold, daemon=True).start()
taken.wait(); taken.clear()
threading.Thread(target=settle, daemon=True).start()
taken.wait()
with own.lock:
    if not (child := os.fork()):
        for guard in (held, own, settled):
            with guard.lock:
                done.append(1)
        os.write(1, str(len(done)).encode())
if not child:
    os._exit(0)
os.waitpid(child, 0)
with settled.lock, own.lock:
    os._exit(0)
"""
    assert in_child(run) == "4"


def test_a_child_makes_its_own_and_takes_down_none_of_its_parents() -> None:
    """Not even at the interpreter's end; and it waits for none that another thread was making."""
    run = """
from headrace.utils.forks import OfEachProcess
class Made:
    def __init__(self):
        self.maker = os.getpid()
    def __del__(self, parent=os.getpid(), write=os.write):
        write(1, b"parents " if self.maker == parent else b"own ")
begun, busy = threading.Event(), [1]
def make():
    if busy:
        begun.set()
        threading.Event().wait()
    return Made()
made, halfway = OfEachProcess(Made), OfEachProcess(make)
assert made() is made()
threading.Thread(target=halfway, daemon=True).start()
begun.wait()
if not (child := os.fork()):
    busy.clear()
    assert made().maker == halfway().maker == os.getpid()
    del made
    sys.exit(0)
assert not os.waitpid(child, 0)[1]
os._exit(0)
"""
    assert in_child(run) == "own"


def test_a_guard_is_its_threads_own() -> None:
    guard = Guard()
    with guard.lock, guard.lock:
        assert not guard.settles


def test_a_child_makes_what_is_left_itself() -> None:
    run = """
from headrace.runtime.text.prefetch import made_ahead
coming = made_ahead(range(9), lambda item: -item)
first = next(coming)
if not (child := os.fork()):
    os.write(1, str([first, *coming]).encode())
    os._exit(0)
assert not os.waitpid(child, 0)[1]
assert [first, *coming] == [(item, -item) for item in range(9)]
"""
    assert in_child(run) == str([(item, -item) for item in range(9)])
    assert list(made_ahead([1, 2], str)) == [(1, "1"), (2, "2")]


def test_a_childs_end_leaves_its_parents_files() -> None:
    """The folder of compiled code, which the parent may still save."""
    run = """
from headrace.utils.scratch import Scratch
scratch = Scratch()
if not (child := os.fork()):
    sys.exit(0)
os.waitpid(child, 0)
print(scratch.path.is_dir())
"""
    assert in_child(run) == "True"
    scratch = Scratch()
    path = scratch.path
    assert path.is_dir()
    del scratch
    assert not path.exists()


def test_a_parents_end_leaves_its_childs_files() -> None:
    """So that what becomes a daemon keeps what it was given; the child takes them along."""
    run = """
from headrace.utils.scratch import Scratch
scratch, ended = Scratch(), os.pipe()
if not os.fork():
    os.close(ended[1])
    os.read(ended[0], 1)
    print(scratch.path, scratch.path.is_dir(), flush=True)
"""
    folder, there = in_child(run).split()
    assert there == "True"
    assert not Path(folder).exists()
