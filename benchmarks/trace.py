"""What tracing a model and proving its types cost, beside another checkout: CPU seconds of one thread.

    python benchmarks/trace.py OTHER [--model minilm] [--rounds 8] [--python PYTHON]

OTHER is a checkout of another version, run by PYTHON, else this one. Each version has a process of its own, and they
take turns (other, this, this, other), so that what else the machine does meets both. The first trace of each process
also imports and is shown apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import headrace
from headrace.examples import folder
place = folder(sys.argv[1])
for _ in sys.stdin:
    begin = time.process_time()
    traced = headrace.trace(place, progress=False)
    middle = time.process_time()
    tasks = sorted(traced.tasks)
    print(middle - begin, time.process_time() - middle, *tasks, flush=True)
"""
HERE = Path(__file__).resolve().parents[1]
STAGES = ("trace", "analyse", "both")


class Worker:
    """A process of one checkout that traces the model each time it is asked."""

    def __init__(self, checkout: Path, python: str, model: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [python, "-c", WORKER, model], cwd=checkout, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
        )  # fmt: skip
        self.tasks: list[str] = []

    def ask(self) -> tuple[float, float, float]:
        """CPU seconds of tracing, of analysing, and of both."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        trace, analyse, *self.tasks = self.process.stdout.readline().split()
        return float(trace), float(analyse), float(trace) + float(analyse)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    other = Worker(given.other.resolve(), given.python, given.model)
    this = Worker(HERE, sys.executable, given.model)
    first = {worker: worker.ask() for worker in (other, this)}
    runs: dict[Worker, list[tuple[float, float, float]]] = {other: [], this: []}
    for _ in range(given.rounds):
        for worker in (other, this, this, other):
            runs[worker].append(worker.ask())
    assert other.tasks == this.tasks, f"the versions enable other tasks: {other.tasks}, {this.tasks}"
    show("first in its process", [first[other]], [first[this]])
    show(f"medians of {2 * given.rounds}", runs[other], runs[this])
    show_least(runs[other], runs[this])
    for worker in (other, this):
        worker.close()


def show(title: str, before: list[tuple[float, float, float]], after: list[tuple[float, float, float]]) -> None:
    for place, stage in enumerate(STAGES):
        one, two = (statistics.median(run[place] for run in runs) for runs in (before, after))
        print(f"{title:22} {stage:8} other {one:.3f} s, this {two:.3f} s, ratio {two / one:.3f}")


def show_least(before: list[tuple[float, float, float]], after: list[tuple[float, float, float]]) -> None:
    one, two = (min(run[-1] for run in runs) for runs in (before, after))
    print(f"{'least':22} {'both':8} other {one:.3f} s, this {two:.3f} s, ratio {two / one:.3f}")


if __name__ == "__main__":
    main()
