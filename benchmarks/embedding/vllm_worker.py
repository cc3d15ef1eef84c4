"""Run by a Python that has vLLM: what is asked comes on standard input, what is found leaves as the last line."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import Any


def main() -> None:
    """Compile, then the whole workload five times, then single requests."""
    asked = json.load(sys.stdin)
    import vllm

    started = time.perf_counter()
    model = vllm.LLM(
        model=asked["model"], runner="pooling", load_format="dummy", dtype="bfloat16", max_model_len=512,
        max_num_batched_tokens=32768, max_num_seqs=1024, gpu_memory_utilization=0.4, enable_prefix_caching=False,
    )  # fmt: skip
    drawn, prompts = random.Random(0), [_prompt(random.Random(i), n) for i, n in enumerate(asked["lengths"])]
    model.embed(prompts, use_tqdm=False)
    first = time.perf_counter() - started
    rate = sum(asked["lengths"]) / statistics.median(_seconds(model, prompts) for _ in range(5))
    latencies = []
    for length in asked["one"]:
        times = [1e3 * _seconds(model, [_prompt(drawn, length)]) for _ in range(120)]
        cut = statistics.quantiles(times[20:], n=100)
        latencies.append((cut[49], cut[98]))
    print(json.dumps({"version": vllm.__version__, "rate": rate, "first": first, "latencies": latencies}))


def _prompt(drawn: random.Random, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [drawn.randrange(5, 30000) for _ in range(length)]}


def _seconds(model: Any, prompts: list[Any]) -> float:
    started = time.perf_counter()
    model.embed(prompts, use_tqdm=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
