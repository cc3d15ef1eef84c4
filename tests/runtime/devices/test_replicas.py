"""One model on several devices, each of which has all of it: the same answers, however the requests fall."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.artifact import saved_model
from tests.devices import IDS, TEXTS, on_several, several


@pytest.fixture(scope="module")
def alone(one: Any) -> Any:
    return one.compile()


@pytest.fixture(scope="module")
def both(one: Any) -> Iterator[Any]:
    made = on_several(one)
    yield made
    made.close()


def ids_of(model: Any) -> list[int]:
    return [process.id for process in model.engine.pool.processes]


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"


def ends(processes: list[int]) -> bool:
    for _ in range(100):
        if not any(map(lives, processes)):
            return True
        time.sleep(0.1)
    return False


def test_token_ids_in_lists_and_in_one_array(both: Any, alone: Any) -> None:
    for got, wanted in zip(both(IDS), alone(IDS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    whole = headrace.Ragged(np.concatenate(IDS), np.cumsum([0, *map(len, IDS)]))
    np.testing.assert_allclose(both(whole), alone(whole), atol=1e-6)


def test_texts_are_tokenised_where_they_run(both: Any, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = alone.embed(TEXTS)
    monkeypatch.setattr("headrace.runtime.text.tokenizer.reader.Reader.read", None)
    monkeypatch.setattr("headrace.runtime.text.tokenizer.reader.Reader.ask", None)
    np.testing.assert_allclose(both.embed(TEXTS), wanted, atol=1e-6)
    np.testing.assert_allclose(both.embed("w5 w6"), wanted[:1] * 0 + both.embed(["w5 w6"]), atol=1e-6)


def test_rows_of_every_token_and_several_tasks_at_once(both: Any, alone: Any) -> None:
    for got, wanted in zip(both.token_embed(TEXTS), alone.token_embed(TEXTS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-6)
    got, wanted = (model.run(TEXTS, ("embed", "token_embed")) for model in (both, alone))
    np.testing.assert_allclose(got["embed"], wanted["embed"], atol=1e-6)
    assert [ids.tolist() for ids in got["token_ids"]] == [ids.tolist() for ids in wanted["token_ids"]]


def test_every_device_has_a_part(both: Any) -> None:
    """By the processor time that each process has taken."""
    before = [_ticks(process) for process in ids_of(both)]
    for _ in range(40):
        both(IDS)
    assert all(after > then for after, then in zip(map(_ticks, ids_of(both)), before, strict=True))


def _ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().split()
    return int(fields[13]) + int(fields[14])


def test_the_same_errors_and_warnings(both: Any, alone: Any) -> None:
    long, said = [*TEXTS[:7], "w5 " * 100, *TEXTS[7:]], []
    for model in (both, alone):
        with pytest.raises(headrace.InputTooLongError, match="Text 7") as refused:
            model.embed(long, truncate=False)
        said.append(str(refused.value))
    assert said[0] == said[1]
    with pytest.raises(headrace.InputError, match=r"token_ids\[1\] holds 10000"):
        both([[5], [5, 6, 10_000]])
    with pytest.raises(headrace.InputError, match="Text 2 is 7"):
        both.embed(["w5", "w6", 7])
    with pytest.raises(headrace.InputError, match="batch_size"):
        both.embed(["w5"], batch_size=0)
    np.testing.assert_allclose(both.embed("w5"), alone.embed("w5"), atol=1e-6)  # and it goes on


def test_cuts_are_told_once_and_of_all(both: Any) -> None:
    long = ["w5 " * 100, *TEXTS, "w6 " * 99]
    reader = both.call("embed").reader
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(_answered(both, reader, long))
    assert [str(one.message).split(" were")[0] for one in caught] == ["2 of 42 texts, the first of them text 0,"]


def _answered(model: Any, reader: Any, texts: list[str]) -> Iterator[Any]:
    from headrace.runtime.devices.unread import unread
    from headrace.runtime.places import IN_ORDER
    from headrace.runtime.text.prefetch import PACKED

    parts = unread(reader, texts, True, places=IN_ORDER, sizes=PACKED, truncate=None)
    return model.engine.answered("embed", parts, len(texts), progress=False)


def test_callers_on_several_threads(both: Any, alone: Any) -> None:
    wanted, found = alone(IDS), dict[int, Any]()

    def ask(number: int) -> None:
        found[number] = both(IDS[number:] + IDS[:number])

    threads = [Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        for got, want in zip(found[number], wanted[number:] + wanted[:number], strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)


def test_who_stops_reading_leaves_nothing_behind(both: Any) -> None:
    requests = both.call("embed").reader.encode(TEXTS, truncate=None)
    answers = both.engine.answered("embed", iter([requests]), len(requests), progress=False)
    next(answers)
    answers.close()
    assert not both.engine.pool.loads.any()
    assert len(both(IDS)) == len(IDS)


def test_what_it_says_of_itself(both: Any) -> None:
    assert both.target == "reference:0,1"
    assert "reference:0,1" in repr(both)
    assert "embed" in both.explain()
    with pytest.raises(headrace.ArtifactError, match="not pickled"):
        pickle.dumps(both)


@pytest.mark.slow
def test_a_forked_child_has_processes_of_its_own(both: Any, alone: Any) -> None:
    wanted, read, write = alone.embed("w5 w6"), *os.pipe()
    child = os.fork()
    if not child:
        try:
            same = np.allclose(both.embed("w5 w6"), wanted, atol=1e-6)
            os.write(write, repr((same, ids_of(both))).encode())
            both.close()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        same, processes = eval(said.read())
    os.waitpid(child, 0)
    assert same
    assert not set(processes) & set(ids_of(both))
    assert ends(processes)
    np.testing.assert_allclose(both.embed("w5 w6"), wanted, atol=1e-6)


@pytest.mark.slow
def test_saved_loaded_and_pickled(
    both: Any, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    folder = both.save(tmp_path / "saved")
    assert headrace.load(folder).target == "reference"
    np.testing.assert_array_equal(headrace.load(folder).embed(TEXTS), alone.embed(TEXTS))
    monkeypatch.setattr(saved_model, "find_backend", lambda *_, **__: several())
    monkeypatch.setattr("headrace.runtime.devices.origin.backend", lambda target: several())
    loaded = headrace.load(folder)
    again = pickle.loads(pickle.dumps(loaded))
    held = ids_of(loaded) + ids_of(again)
    np.testing.assert_allclose(again.embed(TEXTS), alone.embed(TEXTS), atol=1e-6)
    del again
    loaded.close()
    assert ends(held)
    with pytest.raises(headrace.TargetError, match="was closed"):
        loaded.embed("w5")


SCRIPT = """
import headrace
from tests.devices import on_several
from tests.tiny import build
model = on_several(headrace.lower(build("bert"), target="reference", pooling="mean"))
print(*[process.id for process in model.engine.pool.processes], len(model([[5, 6], [7]])))
"""


@pytest.mark.slow
def test_the_end_of_python_leaves_no_process() -> None:
    """A script without a main guard, which is not run again in the processes."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    *processes, answered = map(int, done.stdout.split())
    assert answered == 2
    assert ends(processes)
    assert "leaked" not in done.stderr


def test_a_process_that_dies_fails_its_calls(both: Any) -> None:
    """The last test of this pair."""
    processes = ids_of(both)
    os.kill(processes[1], signal.SIGSTOP)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            both(IDS)
        except BaseException as error:
            errors.append(error)

    asking = Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    os.kill(processes[1], signal.SIGKILL)
    asking.join(20)
    assert len(errors) == 1
    assert isinstance(errors[0], headrace.TargetError)
    assert f"process {processes[1]} was ended by SIGKILL" in str(errors[0])
    assert str(errors[0]).startswith("The device reference answers no more")
    assert ends(processes)
    with pytest.raises(headrace.TargetError, match="SIGKILL"):
        both(IDS)
