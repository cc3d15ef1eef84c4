"""Write docs/coverage.md and docs/coverage.json: what Headrace does with every architecture, each run and compared.

python docs/make_coverage.py [--jobs 2] [--only bert]     (make coverage)

With `--only`, the rows of the named architectures are printed and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.progress import Progress

from tests.coverage import page
from tests.coverage.configs import text_rows
from tests.coverage.named import NAMED
from tests.coverage.work import quiet, row_of

HERE = Path(__file__).parent
Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Measure every row and write the two files."""
    parser = argparse.ArgumentParser(description="Write docs/coverage.md and docs/coverage.json.")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--only", nargs="*", help="architectures to measure and print, writing nothing")
    options = parser.parse_args(arguments)
    wanted = [*text_rows(), *((name, NAMED[name].head) for name in NAMED)]
    if options.only:
        wanted = [pair for pair in wanted if pair[0] in options.only]
    records = list(measured(wanted, options.jobs))
    built = [record for record in records if not record["unbuilt"]]
    if options.only:
        print(json.dumps(records, indent=1))
        return 0
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    (HERE / "coverage.json").write_text(json.dumps(built, indent=1) + "\n")
    (HERE / "coverage.md").write_text(page.document(records, versions))
    print(page.summary(records), Counter(page.status(record) for record in records))
    return 0


def measured(wanted: list[tuple[str, str]], jobs: int) -> Iterator[Record]:
    """Each row's record, in the order asked for. A process is used for a few dozen rows, then replaced."""
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(jobs, context, initializer=quiet, max_tasks_per_child=40) as pool,
        Progress() as progress,
    ):
        shown = progress.add_task("architectures", total=len(wanted))
        futures: list[Future[Record]] = [pool.submit(row_of, name, head) for name, head in wanted]
        for _ in as_completed(futures):
            progress.advance(shown)
        yield from (future.result() for future in futures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
