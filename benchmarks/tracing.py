"""What tracing a model and proving its types costs, stage by stage: CPU seconds of one thread.

    python benchmarks/tracing.py [--against FOLDER] [--rounds 8] [--model minilm | decoder | FOLDER] ...

FOLDER is a checkout of another version. Each version has a process of its own, and they take turns (other, this, this,
other), so that what else the machine does meets both; each prints the medians of its stages, and then how much of the
other's time this one takes. The first run of a process, which imports besides, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# `spent` holds the CPU seconds of each stage of one run: those that the product announces, and torch's export.
WORKER = """
import contextlib, json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import headrace
from headrace import debug

spent = {}

@contextlib.contextmanager
def stage(name):
    begin = time.process_time()
    try:
        yield
    finally:
        spent[name] = spent.get(name, 0.0) + time.process_time() - begin

def export(*args, _export=torch.export.export, **named):
    with stage("torch.export"):
        return _export(*args, **named)

debug.stage, torch.export.export = stage, export
for _ in sys.stdin:
    spent.clear()
    traced = headrace.trace(sys.argv[1], progress=False)
    with stage("analyse"):
        tasks = sorted(traced.tasks)
    spent["load"] -= spent["trace"]  # the one announces the other within it
    spent["trace + analyse"] = spent["trace"] + spent["analyse"]
    print(json.dumps([spent, tasks]), flush=True)
"""
HERE = Path(__file__).resolve().parents[1]


class Worker:
    """A process of one checkout that traces the model each time it is asked."""

    def __init__(self, checkout: Path, model: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, model], cwd=checkout, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
        )  # fmt: skip
        self.runs: list[dict[str, float]] = []
        self.tasks: list[str] = []

    def ask(self) -> dict[str, float]:
        """CPU seconds by stage of one more run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        spent: dict[str, float]
        spent, self.tasks = json.loads(self.process.stdout.readline())
        return spent

    def median(self, stage: str) -> float:
        return statistics.median(run.get(stage, 0.0) for run in self.runs)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(model: str, checkouts: list[Path], rounds: int) -> list[Worker]:
    """Run the model in a process of each checkout, in turns, back and forth."""
    workers = [Worker(checkout, model) for checkout in checkouts]
    for worker in workers:
        worker.ask()
    for _ in range(rounds):
        for worker in (*workers, *reversed(workers)):
            worker.runs.append(worker.ask())
    for worker in workers:
        worker.close()
    return workers


def show(name: str, workers: list[Worker]) -> None:
    this = workers[-1]
    print(f"{name}: medians of {len(this.runs)} runs, CPU seconds; tasks {', '.join(this.tasks)}")
    for stage in dict.fromkeys(stage for worker in reversed(workers) for stage in worker.runs[0]):
        print(f"  {stage:16}" + "".join(f" {worker.median(stage):8.3f}" for worker in workers) + ratio(stage, workers))
    if any(worker.tasks != this.tasks for worker in workers):
        raise SystemExit(f"the versions enable other tasks: {[worker.tasks for worker in workers]}")


def ratio(stage: str, workers: list[Worker]) -> str:
    other, this = workers[0].median(stage), workers[-1].median(stage)
    return f"   ratio {this / other:.3f}" if len(workers) == 2 and other else ""


def folder_of(model: str, scratch: Path) -> str:
    """Where the model lies: real weights of a few layers, a decoder of random ones, or a folder that was named."""
    if model == "minilm":
        from headrace.examples.models import folder

        return str(folder("minilm"))
    return str(write_decoder(scratch / model)) if model == "decoder" else str(Path(model).resolve())


def write_decoder(place: Path) -> Path:
    """A Llama of two layers whose weights are random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--model", action="append")
    given = parser.parse_args()
    checkouts = [place.resolve() for place in (given.against, HERE) if place is not None]
    with tempfile.TemporaryDirectory() as scratch:
        for model in given.model or ("minilm", "decoder"):
            show(model, measure(folder_of(model, Path(scratch)), checkouts, given.rounds))


if __name__ == "__main__":
    main()
