"""What docs/rocm.md says of executed kernels is what docs/rocm.json holds, and all of that is well."""

from __future__ import annotations

import json

from docs import make_rocm

FOUND = json.loads(make_rocm.FOUND.read_text())


def test_the_tables_are_those_of_the_results() -> None:
    page = make_rocm.PAGE.read_text()
    assert make_rocm.document(page) == page, "write it anew: python -m docs.make_rocm --table"


def test_whatever_was_executed_is_near_enough() -> None:
    assert [name for name, row in FOUND.items() if not row["passes"]] == []


def test_every_kernel_of_every_model_was_executed() -> None:
    for name, row in FOUND.items():
        for kernel, _, launches, retired, _ in row.get("kernels", ()):
            assert launches, (name, kernel)
            assert retired, (name, kernel)
