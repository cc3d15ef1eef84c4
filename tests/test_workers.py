"""How files are spread over workers: those that are named are there, and all else stays as it was collected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests import workers

ROOT = Path(__file__).parents[1]


def test_the_files_that_are_named_are_there() -> None:
    for file in (*workers.FIRST, *(file for files in workers.SHARED for file in files)):
        assert (ROOT / file).is_dir() if file.endswith("/") else (ROOT / file).is_file(), file


def test_files_that_share_stay_together() -> None:
    (first, *others), *_ = workers.SHARED
    assert {workers.scope_of(name) for name in others} == {first}
    assert workers.scope_of(f"{first}forms/test_packed.py") == first
    assert workers.scope_of("tests/test_workers.py") == "tests/test_workers.py"


def test_the_longest_come_first_and_the_rest_stays() -> None:
    ids = ["tests/b.py::two", f"{workers.FIRST[1]}::one", "tests/a.py::one", f"{workers.FIRST[0]}::one"]
    found = workers.longest_first(SimpleNamespace(nodeid=name) for name in ids)
    assert [item.nodeid for item in found] == [ids[3], ids[1], ids[0], ids[2]]
