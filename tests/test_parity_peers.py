"""The table beside sentence-transformers: what a row says, and that one outside of D1 is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")

from benchmarks import parity_peers
from benchmarks.parity_peers import COSINE, SCORE, Row, distance, measured, precisions
from benchmarks.peers import cases

CASES = {f"{case.area}: {case.what}": case for case in cases()}


def test_rows_are_named_apart() -> None:
    assert len(CASES) == len(list(cases()))


@pytest.mark.parametrize("name", ["module: CNN", "score: raw"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_within_its_bound(name: str, side: str) -> None:
    row = measured(CASES[name], side, "reference")
    assert row.holds
    assert str(row).endswith("| within D1 |")


def test_a_wrong_answer_is_outside() -> None:
    case = CASES["module: CNN"]
    row = measured(replace(case, ours=lambda model, texts: case.ours(model, texts)[::-1]), "right", "reference")
    assert not row.holds
    assert "OUTSIDE" in str(row)


def test_an_error_is_outside() -> None:
    row = measured(replace(CASES["module: CNN"], options={"max_length": 0}), "right", "reference")
    assert not row.holds
    assert "OUTSIDE max_length is 0" in str(row)


def test_distances() -> None:
    one, two = np.eye(2, 3), np.eye(2, 3) * 5
    assert distance("module", one, two) == 0
    assert distance("score", one, two) == pytest.approx(0.8)
    assert distance("score", one, one[:1]) == float("inf")
    assert not Row("", "", "", float("nan"), COSINE).holds
    assert Row("", "", "", SCORE, SCORE).holds


def test_precisions_are_bit_for_bit() -> None:
    assert all(row.holds for row in precisions())


@pytest.mark.parametrize(("difference", "status"), [(0.0, 0), (1.0, 1)])
def test_the_process_says_whether_all_hold(monkeypatch: Any, capsys: Any, difference: float, status: int) -> None:
    monkeypatch.setattr(parity_peers, "measured", lambda case, side, target: Row("a", "b", side, difference, COSINE))
    monkeypatch.setattr("sys.argv", ["parity_peers", "--only", "CNN"])
    with pytest.raises(SystemExit) as ended:
        parity_peers.main()
    assert ended.value.code == status
    assert f"{2 - 2 * status} of 2 within D1" in capsys.readouterr().out
