"""Decoding by onnxruntime: a folder of ours through our loop beside the exports and loops of others, of one model.

    headrace export MODEL OURS
    python -m onnxruntime_genai.models.builder -m MODEL -o THEIRS -p fp32 -e cpu
    optimum-cli export onnx -m MODEL --task text-generation-with-past OTHERS
    python benchmarks/generate_onnx.py OURS THEIRS [--optimum PYTHON OTHERS] [--new 64] [--runs 5]

A run of each in turn, one thread, greedy, a prompt of 32 tokens; tokens a second by CPU time, and by the clock. `genai
on ours` is their loop on our folder, where it has a genai_config.json. Optimum wants an older transformers, so that it
runs in a process of its own, by the Python that is given, which waits while others run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
PROMPT = 32
Run = Callable[[], list[int]]
# What a child says after each line that it is given: seconds of CPU time, and the tokens.
OPTIMUM = """
import json, sys, time
import onnxruntime, torch
from optimum.onnxruntime import ORTModelForCausalLM
torch.set_num_threads(1)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
folder, new, ids = sys.argv[1], int(sys.argv[2]), torch.tensor([json.loads(sys.argv[3])])
model = ORTModelForCausalLM.from_pretrained(folder, session_options=options, provider="CPUExecutionProvider")
asked = {"max_new_tokens": new, "eos_token_id": -1, "do_sample": False, "attention_mask": torch.ones_like(ids)}
for line in sys.stdin:
    begin = time.process_time()
    made = model.generate(ids, **asked)[0, ids.shape[1]:].tolist()
    print(json.dumps([time.process_time() - begin, made]), flush=True)
"""


def ours(folder: str, ids: list[int], new: int) -> Run:
    import headrace

    model = headrace.load(folder)
    options = {"max_new_tokens": new, "ignore_eos": True, "temperature": 0}
    return lambda: list(model.generate([ids], **options)[0].token_ids)


def genai(folder: str, ids: list[int], new: int, scratch: str) -> Run:
    """Their loop, with one thread and no end token."""
    import onnxruntime_genai

    work = Path(tempfile.mkdtemp(dir=scratch))
    for path in Path(folder).rglob("*"):
        if path.is_file() and path.name != "genai_config.json":
            place = work / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())
    config = json.loads((Path(folder) / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"] |= {"intra_op_num_threads": 1}
    (work / "genai_config.json").write_text(json.dumps(config))
    model = onnxruntime_genai.Model(str(work))

    def run() -> list[int]:
        asked = onnxruntime_genai.GeneratorParams(model)
        asked.set_search_options(max_length=len(ids) + new, min_length=len(ids) + new, do_sample=False)
        made = onnxruntime_genai.Generator(model, asked)
        made.append_tokens(ids)
        while not made.is_done():
            made.generate_next_token()
        return [int(token) for token in made.get_sequence(0)[len(ids) :]]

    return run


class Child:
    """A process that runs when it is told to, and the CPU time that it took in all."""

    def __init__(self, python: str, folder: str, ids: list[int], new: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.own = 0.0
        self._process = subprocess.Popen(
            [python, "-c", OPTIMUM, folder, str(new), json.dumps(ids)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip

    def __call__(self) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        took, made = json.loads(self._process.stdout.readline())
        self.own += took
        return list(made)

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--optimum", nargs=2, metavar=("PYTHON", "FOLDER"))
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    ids = [504 + 7 * place for place in range(PROMPT)]
    scratch = tempfile.mkdtemp()
    sides: dict[str, Run] = {
        "headrace": ours(given.ours, ids, given.new),
        "genai": genai(given.theirs, ids, given.new, scratch),
    }
    if (Path(given.ours) / "genai_config.json").is_file():
        sides["genai on ours"] = genai(given.ours, ids, given.new, scratch)
    child = Child(*given.optimum, ids, given.new) if given.optimum else None
    if child is not None:
        sides["optimum"] = child
    made = {name: run() for name, run in sides.items()}  # warm
    for name, tokens in made.items():
        same = next((i for i, (a, b) in enumerate(zip(tokens, made["headrace"], strict=False)) if a != b), len(tokens))
        print(f"{name}: {len(tokens)} tokens, the first {same} as ours")
    laps: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(given.runs):
        for name in sides if turn % 2 == 0 else reversed(sides):
            wall, own = time.perf_counter(), _own(child)
            sides[name]()
            laps[name].append((_own(child) - own, time.perf_counter() - wall))
    best = {name: [statistics.median(lap[i] for lap in some) for i in (0, 1)] for name, some in laps.items()}
    for name, (own, wall) in best.items():
        rates = f"{given.new / own:.1f} tokens/s of CPU ({given.new / wall:.1f} by the clock)"
        beside = ", ".join(f"{best[other][0] / own:.2f} of {other}'s" for other in best if other != name)
        print(f"{name}: {rates}, {beside}")
    shutil.rmtree(scratch)
    if child is not None:
        child.end()


def _own(child: Child | None) -> float:
    """CPU time of this process and of the one that it waits for."""
    return time.process_time() + (child.own if child is not None else 0)


if __name__ == "__main__":
    main()
