"""Write docs/coverage.md and docs/coverage.json: what Headrace does with every architecture, each run and compared.

python -m docs.make_coverage [--jobs 2] [--only bert] [--rows FILE]     (make coverage)

With `--only`, the rows of the named architectures are printed and nothing is written. With `--rows`, each row is kept
in that file as it comes, and those that it holds are not measured again: an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
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
    parser.add_argument("--rows", type=Path, help="a file of rows to keep and to go on from")
    options = parser.parse_args(arguments)
    wanted = [*text_rows(), *((name, NAMED[name].head) for name in NAMED)]
    if options.only:
        wanted = [pair for pair in wanted if pair[0] in options.only]
    records = list(measured(wanted, options.jobs, options.rows))
    built = [record for record in records if not record["unbuilt"]]
    if options.only:
        print(json.dumps(records, indent=1))
        return 0
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    (HERE / "coverage.json").write_text(json.dumps(built, indent=1) + "\n")
    (HERE / "coverage.md").write_text(page.document(records, versions))
    print(page.summary(records), Counter(page.status(record) for record in records))
    return 0


def measured(wanted: list[tuple[str, str]], jobs: int, kept: Path | None) -> Iterator[Record]:
    """Each row's record, in the order asked for. A process is used for a few dozen rows, then replaced."""
    done = {(row["architecture"], row["head"]): row for row in map(json.loads, _lines(kept))}
    missing = [pair for pair in wanted if pair not in done]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, quiet, maxtasksperchild=40) as pool, Progress() as progress:
        shown = progress.add_task("architectures", total=len(wanted), completed=len(wanted) - len(missing))
        for row in pool.imap_unordered(_row_of, missing):
            done[row["architecture"], row["head"]] = row
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            progress.advance(shown)
    yield from (done[pair] for pair in wanted)


def _row_of(pair: tuple[str, str]) -> Record:
    return row_of(*pair)


def _lines(kept: Path | None) -> list[str]:
    return kept.read_text().splitlines() if kept is not None and kept.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
