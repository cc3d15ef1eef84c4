"""Files to vectors: those of the list API, each once, whatever ends the work in between."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import HeadraceError, InputError
from headrace.runtime.corpora import sources
from headrace.runtime.corpora.embed import embed_files
from tests.words import bert_like

COUNT = 43


@pytest.fixture(scope="session")
def model(tiny: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        return headrace.compile(tiny("bert"), target="reference", tokenizer=bert_like(), pooling="mean").warm()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts of eight rows."""
    monkeypatch.setattr(sources, "ROWS", 8)
    return 8


def texts(count: int = COUNT) -> list[str]:
    chance = random.Random(1)
    return [" ".join(f"w{chance.randrange(5, 96)}" for _ in range(chance.randrange(1, 9))) for _ in range(count)]


def write(folder: Path, kind: str, rows: list[Any], name: str = "some") -> Path:
    path = folder / f"{name}.{kind}"
    if kind == "txt":
        path.write_text("".join(f"{row}\n" for row in rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": row}) + "\n" for row in rows))
    else:
        table = pa.table({"id": list(range(len(rows))), "text": rows})
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=20)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=20)
    return path


def rows_of(out: Path) -> dict[tuple[str, int], tuple[Any, str | None]]:
    """Every row of the output, of which none may be there twice."""
    found: dict[tuple[str, int], tuple[Any, str | None]] = {}
    for path in sorted(out.glob("*.parquet")):
        table = pq.read_table(path)
        assert pa.types.is_fixed_size_list(table.schema.field("embedding").type)
        for row in table.to_pylist():
            key = (Path(row["file"]).name, row["row"])
            assert key not in found
            found[key] = (row["embedding"], row["error"])
    return found


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow", "txt"])
def test_files_of_every_kind(model: Any, tmp_path: Path, small_parts: int, kind: str) -> None:
    given = texts()
    path, wanted = write(tmp_path, kind, given), model.embed(given)
    done = embed_files(model, [path], tmp_path / "out")
    assert (done.rows, done.failed, done.found) == (COUNT, 0, 0)
    found = rows_of(tmp_path / "out")
    assert set(found) == {(path.name, row) for row in range(COUNT)}
    got = [found[path.name, row][0] for row in range(COUNT)]
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    again = embed_files(model, [path], tmp_path / "out")
    assert (again.rows, again.parts, again.found) == (0, 0, done.parts)


def test_rows_that_fail_have_a_reason_and_the_others_a_vector(model: Any, tmp_path: Path, small_parts: int) -> None:
    given: list[Any] = texts()
    given[3], given[9], given[17], given[20] = None, "w5 " * 100, 7, "w6"
    path = write(tmp_path, "jsonl", given)
    path.write_bytes(path.read_bytes() + b"{broken\n\xff\xfe\n")
    done = embed_files(model, [path], tmp_path / "out", truncate=False)
    found = rows_of(tmp_path / "out")
    failed = {row: error for (_, row), (vector, error) in found.items() if vector is None}
    assert done.failed == len(failed) == 5
    assert failed[3] == failed[17] == "no string under 'text'"
    assert "at most 64 are accepted" in failed[9]
    assert failed[COUNT].startswith("no JSON")
    assert failed[COUNT + 1] == "not UTF-8 (byte 1)"
    np.testing.assert_allclose(found[path.name, 20][0], model.embed("w6")[0], atol=1e-5)
    null = write(tmp_path, "parquet", ["w5", None, "w6"])
    embed_files(model, [null], tmp_path / "nulls")
    assert [error for _, error in rows_of(tmp_path / "nulls").values()] == [None, "null", None]


def test_options_and_several_files(model: Any, tmp_path: Path, small_parts: int) -> None:
    given = texts(5)
    folder = tmp_path / "in"
    folder.mkdir()
    for kind in ("txt", "parquet"):
        write(folder, kind, given)
    embed_files(model, [folder], tmp_path / "out", dimensions=8, normalize=True)
    found = rows_of(tmp_path / "out")
    assert len(found) == 10
    wanted = model.embed(given, dimensions=8, normalize=True)
    np.testing.assert_allclose([found["some.txt", row][0] for row in range(5)], wanted, atol=1e-5)
    more = write(folder, "txt", given[:2], "more")
    assert embed_files(model, [folder], tmp_path / "out", dimensions=8, normalize=True).rows == 2
    assert ("more.txt", 1) in rows_of(tmp_path / "out")
    more.write_text("w7\n")
    with pytest.raises(InputError, match="has changed since its vectors were written") as changed:
        embed_files(model, [folder], tmp_path / "out", dimensions=8, normalize=True)
    stale = str(changed.value).split()[-2]
    for path in Path(stale).parent.glob(Path(stale).name):
        path.unlink()
    assert embed_files(model, [folder], tmp_path / "out", dimensions=8, normalize=True).rows == 1
    assert len(rows_of(tmp_path / "out")) == 11


def test_another_model_or_other_options_are_refused(model: Any, tiny: Any, tmp_path: Path) -> None:
    path, out = write(tmp_path, "txt", texts(3)), tmp_path / "out"
    embed_files(model, [path], out)
    with pytest.raises(InputError, match="options was"):
        embed_files(model, [path], out, normalize=True)
    other = tiny("bert", intermediate_size=48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        changed = headrace.compile(other, target="reference", tokenizer=bert_like(), pooling="mean")
    with pytest.raises(InputError, match="model was"):
        embed_files(changed, [path], out)
    held = os.open(out, os.O_RDONLY)
    import fcntl

    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process"):
        embed_files(model, [path], out)
    os.close(held)
    assert embed_files(model, [path], out).found == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.txt", "no such file"),
        ("table.csv", "of no kind"),
        ("numbers.parquet", "is int64"),
        ("bad.arrow", "as .arrow"),
    ],
)
def test_files_that_cannot_be_read(model: Any, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "table.csv").write_text("a")
    (tmp_path / "bad.arrow").write_text("a")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "numbers.parquet")
    with pytest.raises(InputError, match=words):
        embed_files(model, [tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    good = write(tmp_path, "parquet", ["w5"])
    with pytest.raises(InputError, match="its columns are id, text"):
        embed_files(model, [good], tmp_path / "out", column="body")


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow(reason="the same, more often"))])
def test_killed_at_any_moment(model: Any, tmp_path: Path, small_parts: int, kills: int) -> None:
    """Each run is a child that is killed before its end; what it had written stays, and the last goes to the end."""
    given, chance, left = texts(400), random.Random(kills), kills
    path, outs = write(tmp_path, "parquet", given), (tmp_path / f"out{place}" for place in range(kills))
    wanted = model.embed(given)
    while left:
        out = next(outs)
        left -= _killed(model, path, out, chance, left)
        before = {file.name: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
        written = len(rows_of(out))
        assert embed_files(model, [path], out).rows == len(given) - written
        assert before.items() <= {file.name: file.stat().st_mtime_ns for file in out.glob("*.parquet")}.items()
        found = rows_of(out)
        assert sorted(row for _, row in found) == list(range(len(given)))
        np.testing.assert_allclose([found[path.name, row][0] for row in range(len(given))], wanted, atol=1e-5)
        assert not list(out.glob(".*"))


def _killed(model: Any, path: Path, out: Path, chance: random.Random, most: int) -> int:
    """Kill run after run at a folder, up to so many or until one comes to its end; how many were killed."""
    written = [0]
    for kills in range(most):
        child = os.fork()
        if not child:
            embed_files(model, [path], out)
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        written.append(len(rows_of(out)))  # every file is readable
        assert written[-1] >= written[-2]
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            return kills
    return most


def test_a_disk_that_fills_says_so_and_the_work_goes_on(
    model: Any, tmp_path: Path, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, real, calls = write(tmp_path, "txt", texts()), tmp_path / "out", pq.write_table, list[int]()

    def full(table: Any, where: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            Path(where).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(table, where, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(HeadraceError, match=r"No space left on device.*run the same again"):
            embed_files(model, [path], out)
    assert len(rows_of(out)) == 16
    assert not list(out.glob(".*"))
    assert embed_files(model, [path], out).rows == COUNT - 16
    assert len(rows_of(out)) == COUNT


def test_the_command(model: Any, tmp_path: Path, capsys: Any) -> None:
    from headrace.runtime.tools.cli import main

    saved, path = model.save(tmp_path / "model"), write(tmp_path, "jsonl", texts(5))
    line = ["embed", str(saved), str(path), "--out", str(tmp_path / "out")]
    for wanted in ("wrote 5 rows", "wrote 0 rows"):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert not ended.value.code
        assert wanted in capsys.readouterr().err
    assert len(rows_of(tmp_path / "out")) == 5
