"""Decoding by onnxruntime: a folder of ours through our loop beside onnxruntime-genai's own export of the same model.

    headrace export MODEL OURS
    python -m onnxruntime_genai.models.builder -m MODEL -o THEIRS -p fp32 -e cpu
    python benchmarks/generate_onnx.py OURS THEIRS [--new 64] [--runs 5]

In one process, a run of each in turn, one thread, greedy, a prompt of 32 tokens; tokens a second by CPU time, and
by the clock. `genai on ours` is their loop on our folder, where it has a genai_config.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
PROMPT = 32
Run = Callable[[], list[int]]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours")
    parser.add_argument("theirs")
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
    made = {name: run() for name, run in sides.items()}  # warm
    for name, tokens in made.items():
        same = next((i for i, (a, b) in enumerate(zip(tokens, made["headrace"], strict=False)) if a != b), len(tokens))
        print(f"{name}: {len(tokens)} tokens, the first {same} as ours")
    laps: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(given.runs):
        for name in sides if turn % 2 == 0 else reversed(sides):
            wall, own = time.perf_counter(), time.process_time()
            sides[name]()
            laps[name].append((time.process_time() - own, time.perf_counter() - wall))
    best = {name: [statistics.median(lap[i] for lap in some) for i in (0, 1)] for name, some in laps.items()}
    for name, (own, wall) in best.items():
        rates = f"{given.new / own:.1f} tokens/s of CPU ({given.new / wall:.1f} by the clock)"
        print(f"{name}: {rates}, {best['genai'][0] / own:.2f} of genai's")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
