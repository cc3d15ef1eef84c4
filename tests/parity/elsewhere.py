"""Check every committed bundle on a target, and record some anew there, to be checked on another machine.

    python -m tests.parity.elsewhere cuda OUT [JOBS]

writes OUT/checks/NAME.json, OUT/bundles/NAME and OUT/bundles.tgz. Needs neither pytest nor typer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.parity.models import CASES, Case, save

RECORDED: tuple[str, ...] = (
    "bert-embed", "bert-token-classify", "modernbert-embed", "xlm-roberta-classify", "qwen3-token-classify",
    "gemma3-bidirectional-embed", "t5-classify", "mamba2-embed",
)  # fmt: skip
SECONDS = 400


def check_one(case: Case, target: str, out: Path) -> str:
    from headrace.runtime.tools.parity.check.checking import check
    from headrace.runtime.tools.parity.report.text import report_text

    result = check(case.folder, target=target)
    result.write(out / "checks" / f"{case.name}.json")
    return report_text([result])


def record_one(case: Case, target: str, out: Path) -> str:
    from headrace.runtime.tools.parity.record.recording import record
    from headrace.runtime.tools.parity.report.text import report_text

    with TemporaryDirectory() as folder:
        model = save(case, Path(folder))
        result = record(model, out / "bundles" / case.name, task=case.task, target=target, **case.options)
    return report_text([result])


def run(work: str, case: Case, target: str, out: Path) -> str:
    """In a process of its own: what happened, on a line, or all of it where it is no pass."""
    command = [sys.executable, "-m", "tests.parity.elsewhere", work, case.name, target, str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"{work} {case.name}: no result within {SECONDS} s"
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or len(lines) < 2 or "PASS" not in lines[1]:
        return f"{work} {case.name}: exit code {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-1500:]}"
    return f"{work} {case.name}: {lines[1].strip()}"


def everything(target: str, out: Path, jobs: int) -> None:
    for name in ("checks", "bundles"):
        (out / name).mkdir(parents=True, exist_ok=True)
    wanted = [("check", case) for case in CASES] + [("record", case) for case in CASES if case.name in RECORDED]
    with ThreadPoolExecutor(jobs) as pool:
        for said in pool.map(lambda one: run(*one, target, out), wanted):
            print(said, flush=True)
    with tarfile.open(out / "bundles.tgz", "w:gz") as packed:
        packed.add(out / "checks", "checks")
        packed.add(out / "bundles", "bundles")


def main(arguments: list[str]) -> None:
    works = {"check": check_one, "record": record_one}
    if arguments[0] in works:
        work, name, target, out = arguments
        print(works[work](next(case for case in CASES if case.name == name), target, Path(out)))
    else:
        everything(arguments[0], Path(arguments[1]), int(arguments[2]) if len(arguments) > 2 else os.cpu_count() or 1)


if __name__ == "__main__":
    main(sys.argv[1:])
