"""Record every committed bundle anew: `python -m tests.parity.make [NAME ...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.parity.models import CASES, Case, save


def make(case: Case) -> str:
    """Record one bundle by the reference target; its verdict on a line."""
    from headrace.runtime.tools.parity.record.recording import record
    from headrace.runtime.tools.parity.report.text import verdict

    with TemporaryDirectory() as folder:
        result = record(save(case, Path(folder)), case.folder, task=case.task, target="reference", **case.options)
    size = sum(path.stat().st_size for path in case.folder.rglob("*") if path.is_file())
    return f"{case.name}: {verdict(result)}, {size:,} bytes"


if __name__ == "__main__":
    wanted = set(sys.argv[1:])
    for case in CASES:
        if not wanted or case.name in wanted:
            print(make(case), flush=True)
