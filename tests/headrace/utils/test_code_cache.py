"""The cache of compiled code: made once, read by its user alone, bounded, and never half an entry."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.utils import code_cache
from headrace.utils.code_cache import clear, entries, fetch, place

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CODE_CACHE", str(tmp_path / "code"))
    return tmp_path / "code"


def never() -> bytes:
    raise AssertionError("it was made already")


def test_what_was_made_is_not_made_again(folder: Path) -> None:
    assert fetch(KEY, "a model", lambda: b"code") == b"code"
    assert fetch(KEY, "a model", never) == b"code"
    (entry,) = entries(folder)
    assert (entry.label, entry.path.name) == ("a model", f"{KEY}.code")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == [entry.path.name]


def test_what_fails_is_not_kept(folder: Path) -> None:
    with pytest.raises(AssertionError):
        fetch(KEY, "", never)
    assert not list(folder.iterdir())
    assert fetch(KEY, "", lambda: b"code") == b"code"


@pytest.mark.parametrize("damage", [lambda held: held[:-1], lambda held: held[:-1] + b"?", lambda _: b""])
def test_a_damaged_entry_is_made_anew(damage: object, folder: Path) -> None:
    fetch(KEY, "", lambda: b"code")
    path = folder / f"{KEY}.code"
    path.write_bytes(damage(path.read_bytes()))
    assert fetch(KEY, "", lambda: b"anew") == b"anew"
    assert fetch(KEY, "", never) == b"anew"


@pytest.mark.parametrize("opened", ["entry", "folder", "parent"])
def test_what_others_can_write_to_is_not_read(opened: str, folder: Path) -> None:
    fetch(KEY, "", lambda: b"another's")
    {"entry": folder / f"{KEY}.code", "folder": folder, "parent": folder.parent}[opened].chmod(0o777)
    assert fetch(KEY, "", lambda: b"code") == b"code"


def test_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    fetch(KEY, "", lambda: b"another's")
    elsewhere = tmp_path / "elsewhere"
    (folder / f"{KEY}.code").rename(elsewhere)
    (folder / f"{KEY}.code").symlink_to(elsewhere)
    assert fetch(KEY, "", lambda: b"code") == b"code"


def test_those_used_longest_ago_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "LARGEST", 3000)
    for number in range(3):
        fetch(str(number), str(number), lambda: bytes(900))
        os.utime(folder / f"{number}.code", (number, number))
    fetch("0", "0", never)  # used now
    fetch("3", "3", lambda: bytes(900))
    assert {entry.label for entry in entries(folder)} == {"0", "2", "3"}
    fetch("large", "large", lambda: bytes(9000))
    assert {entry.label for entry in entries(folder)} == {"large"}


def test_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CODE_CACHE", "off")
    assert place() is None
    assert [fetch(KEY, "", lambda: b"code") for _ in range(2)] == [b"code"] * 2
    assert not folder.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CODE_CACHE", str(tmp_path / "file" / "code"))
    assert fetch(KEY, "", lambda: b"code") == b"code"


def test_clear(folder: Path) -> None:
    for key in ("one", "two"):
        fetch(key, key, lambda: b"code")
    count, size = clear(folder)
    assert (count, size > 8) == (2, True)
    assert not list(folder.iterdir())
    assert fetch("one", "", lambda: b"anew") == b"anew"


def test_threads_and_processes_that_ask_at_once(folder: Path, tmp_path: Path) -> None:
    """Each notes that it made something; one line is there in the end, and all have what that one made."""
    made = tmp_path / "made"
    script = (
        "import os, time; from pathlib import Path; from headrace.utils.code_cache import fetch\n"
        f"def make():\n    open({str(made)!r}, 'a').write('x'); time.sleep(0.2); return str(os.getpid()).encode()\n"
        f"print(fetch({KEY!r}, '', make).decode())"
    )
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate(timeout=120)[0].strip() for process in running]
    assert made.read_text() == "x"
    assert len(set(answers)) == 1
    assert int(answers[0]) in [process.pid for process in running]
    threads = [threading.Thread(target=lambda: answers.append(fetch(KEY, "", never).decode())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
