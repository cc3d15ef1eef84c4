"""Decoding on one GPU: new tokens a second in three jobs, and the share of what the device's memory allows.

python benchmarks/generate_gpu.py [--layers 28] [--dtype bfloat16] [--jobs one,even,mixed] [--check] [--profile]
    [--kv-cache-dtype fp8]

Qwen3-0.6B's shape with random weights, greedy, prompts as ids: one prompt of 128 tokens; 256 of them, 128 new tokens
each; 256 of 100 to 1,024 tokens, as many new ones. The bound is what must be read of memory: the weights once a step,
and every key and value that its sequences hold. `--check` holds the ids to those of float32 first, up to where its two
likeliest tokens are nearer than bfloat16 rounds.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

SHAPE = {
    "vocab_size": 151669, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
BYTES_A_SECOND = {"NVIDIA H200": 4.8e12}
Jobs = dict[str, tuple[list[list[int]], list[int]]]


def main() -> None:
    """Compile, check, run, print."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--layers", type=int, default=28)
    given.add_argument("--dtype", default="bfloat16")
    given.add_argument("--jobs", default="one,even,mixed")
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--kv-cache-dtype")
    given.add_argument("--check", action="store_true")
    given.add_argument("--profile", action="store_true")
    asked = given.parse_args()
    eager = build(asked.layers)
    import headrace

    with tempfile.TemporaryDirectory() as folder:
        eager.save_pretrained(folder)
        started = time.perf_counter()
        options = {"target": "cuda", "dtype": asked.dtype, "task": "generate", "pooling": "last"}
        kept = {"kv_cache_dtype": asked.kv_cache_dtype, "force": True}  # random weights are no measure of what it costs
        model = headrace.compile(folder, **options, **kept, progress=False).warm()
    print(f"{asked.layers} layers compiled in {time.perf_counter() - started:.0f} s, torch {torch.__version__}")
    kept_in = model.engine.decoding().lane.program.form.quantized_caches or "in the dtype of the model"
    print(f"caches take {bytes_a_token(model):,} bytes a token: {kept_in}", flush=True)
    if asked.check:
        check(eager, model)
    for name, (prompts, new) in jobs().items():
        if name in asked.jobs.split(","):
            measure(name, model, prompts, new, asked)


def build(layers: int) -> Any:
    """The model with random weights whose logits differ, on the device."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(**SHAPE, num_hidden_layers=layers, initializer_range=0.05)
    config.eos_token_id = None
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def jobs() -> Jobs:
    """Prompts and new tokens of each."""
    dice = np.random.default_rng(1)

    def ids(length: int) -> list[int]:
        made: list[int] = dice.integers(5, 30000, length).tolist()
        return made

    lengths = dice.integers(100, 1025, (256, 2)).tolist()
    return {
        "one": ([ids(128)], [256]),
        "even": ([ids(128) for _ in range(256)], [128] * 256),
        "mixed": ([ids(given) for given, _ in lengths], [new for _, new in lengths]),
    }


def run(model: Any, prompts: list[list[int]], new: Sequence[int]) -> int:
    """Submit every prompt with its own number of new tokens, and step until all are over: tokens made."""
    from headrace.ir import Task
    from headrace.runtime.tasks.generate import begin, submit

    call = model._call(model.engine.require(Task.GENERATE), None, None, False)
    begun = [begin(call, [prompt], None, {"max_new_tokens": count}) for prompt, count in zip(prompts, new, strict=True)]
    loop = begun[0][0]
    loop.run([submit(loop, one) for _, answers in begun for one in answers])
    return sum(len(one.answer.new) for _, answers in begun for one in answers)


def measure(name: str, model: Any, prompts: list[list[int]], new: list[int], asked: Any) -> None:
    """Rounds of one job, after one that captures."""
    store = model.engine.decoding().lane.state.store
    seconds = []
    for number in range(asked.rounds + 1):
        forget(store)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        made = run(model, prompts, new)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        assert made == sum(new), f"{made} tokens"
        if number == 0:
            first = seconds.pop()
    rate = sum(new) / median(seconds)
    bound = sum(new) / least_seconds(model, prompts, new)
    print(
        f"{name}: {rate:,.0f} new tok/s ({min(seconds):.3f} to {max(seconds):.3f} s, the first {first:.1f}), "
        f"{rate / bound:.0%} of the bound {bound:,.0f}",
        flush=True,
    )
    if asked.profile:
        profile(lambda: run(model, prompts[:], [min(count, 16) for count in new]))


def forget(store: Any) -> None:
    """Let no round find the prefixes of the one before."""
    from headrace.runtime.cache.prefixes import Prefixes

    store._prefixes = Prefixes()


def bytes_a_token(model: Any) -> int:
    """Of all caches, scales among them."""
    from headrace.ir import DTYPE_BYTES

    form = model.engine.decoding().lane.program.form
    return sum(int(np.prod(cache.sizes)) * DTYPE_BYTES[cache.dtype] for cache in form.caches)


def least_seconds(model: Any, prompts: list[list[int]], new: list[int]) -> float:
    """What reading takes: weights once a step, and what every sequence holds at each of its tokens."""
    each = bytes_a_token(model)
    exported = model.engine.decoding().lane.program.graph
    weights = sum(weight.numel() * weight.element_size() for weight in exported.parameters())
    steps = max(new)
    held = sum(len(prompt) * count + count * count // 2 for prompt, count in zip(prompts, new, strict=True))
    rate = BYTES_A_SECOND.get(torch.cuda.get_device_name(), 4.8e12)
    return float((steps * weights + held * each) / rate)


@torch.no_grad()
def check(eager: Any, model: Any) -> None:
    """Ids of a few prompts beside float32's of the same weights, where its margin is above what bfloat16 rounds.

    That is taken from transformers' own logits in bfloat16: how far they are from float32's, at each token the most.
    """
    prompts = [prompt[: 20 + 9 * place] for place, prompt in enumerate(jobs()["even"][0][:8])]
    found = model.generate(prompts, max_new_tokens=64, progress=False)
    texts = [torch.tensor([[*prompt, *one.token_ids]]) for prompt, one in zip(prompts, found, strict=True)]
    rounded = [logits(eager, ids) for ids in texts]
    exact = [logits(eager.float(), ids) for ids in texts]
    compared = same = theirs = 0
    for prompt, one, half, single in zip(prompts, found, rounded, exact, strict=True):
        near, wanted = (made[len(prompt) - 1 : -1] for made in (half, single))
        top = wanted.topk(2)
        sure = top.values[:, 0] - top.values[:, 1] > 2 * (near - wanted).abs().amax(-1)
        compared += int(sure.sum())
        same += int((sure & (top.indices[:, 0] == torch.tensor(one.token_ids, device="cuda"))).sum())
        theirs += int((sure & (top.indices[:, 0] == near.argmax(-1))).sum())
    print(
        f"ids: {same} of {compared} as float32's where its margin is above rounding (transformers' {theirs})",
        flush=True,
    )
    eager.cpu()
    gc.collect()
    torch.cuda.empty_cache()


def logits(eager: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of every token, float32 [S, V] on the device."""
    made: torch.Tensor = eager.cuda()(input_ids=ids.cuda()).logits[0].float()
    return made


def profile(work: Callable[[], object]) -> None:
    """Kernels by the time that they take."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    with recorded(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=60))


if __name__ == "__main__":
    main()
