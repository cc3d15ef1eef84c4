"""Decoding on a CPU beside transformers' generate, interleaved in one run: tokens a second, and their ratio.

python benchmarks/generate_cpu.py [--threads 1] [--new 48] [--rounds 3]

Real weights (smollm2, float32), greedy. Each round runs one and then the other on the same prompts; the tokens must be
the same. The ratio is of medians, its spread that of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

PROMPT = "The history of the Roman empire begins with the city of Rome, which"
BATCHES = (1, 8)


def main() -> None:
    """Compile, run, print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--new", type=int, default=48)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import headrace
    from headrace.examples.models import folder

    path = folder("smollm2")
    eager, tokenizer = AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    started = time.perf_counter()
    model = headrace.compile(path, target="cpu", task="generate", progress=False)
    print(f"compiled in {time.perf_counter() - started:.0f} s, torch {torch.__version__}, {asked.threads} thread(s)")
    for batch in BATCHES:
        texts = [f"{PROMPT}{' really' * place}" for place in range(batch)]
        given = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")

        def theirs(given: Any = given) -> list[list[int]]:
            made = eager.generate(**given, max_new_tokens=asked.new, min_new_tokens=asked.new, do_sample=False)
            return [row[given["input_ids"].shape[1] :].tolist() for row in made]

        def ours(texts: list[str] = texts) -> list[list[int]]:
            found = model.generate(texts, max_new_tokens=asked.new, ignore_eos=True, progress=False)
            return [list(one.token_ids) for one in found]

        assert ours() == theirs(), "the tokens differ"
        rounds = [(_seconds(theirs), _seconds(ours)) for _ in range(asked.rounds)]
        report(batch, asked.new, rounds)


def _seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        run()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(batch: int, new: int, rounds: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    """One line for each clock."""
    for clock, name in enumerate(("wall", "CPU")):
        theirs, ours = ([one[side][clock] for one in rounds] for side in range(2))
        ratios = sorted(there / here for there, here in zip(theirs, ours, strict=True))
        print(
            f"batch {batch}, {name} seconds: transformers {batch * new / median(theirs):.1f} tok/s, "
            f"headrace {batch * new / median(ours):.1f} tok/s, {median(theirs) / median(ours):.2f}x "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
