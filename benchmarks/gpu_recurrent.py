"""Recurrences packed, on one NVIDIA GPU: python benchmarks/gpu_recurrent.py [shape ...] [--kernels] [--profile]

First the answers, of a few texts whose lengths lie around the ends of chunks, against Hugging Face's float32 on each
text alone: in float32 within contract D1, in bfloat16 within what Hugging Face's own bfloat16 is off. Then the rate,
beside Hugging Face's padded batches, longest first and on the device before their clock starts; ours begin on the host.
Random weights of real mixers' sizes: Mamba-2 130M whole, and 8 layers of Qwen3-Next with a dense feed-forward.
With `--kernels`, each recurrence alone by several blocks, for `backends/kernels/tuning.py`.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from embedding.ours import profiled
from embedding.peers import Padded, padded
from embedding.timing import median_seconds
from embedding.workload import DTYPE, Shape, draw
from torch import Tensor

import headrace

SHAPES = {
    "mamba2-130m": Shape(
        "Mamba2Config",
        "last",
        {
            "vocab_size": 50288, "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "head_dim": 64,
            "state_size": 128, "n_groups": 1, "expand": 2, "conv_kernel": 4, "chunk_size": 256, "rms_norm": True,
        },
    ),
    "qwen3-next": Shape(
        "Qwen3NextConfig",
        "last",
        {
            "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "num_experts": 0,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        },
    ),
}  # fmt: skip
CHECKED = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 200, 511)
# Tokens of a chunk, columns, warps, stages.
BLOCKS = [*itertools.product((16, 32, 64), (16, 32, 64), (4, 8), (1, 2, 3))]


def main() -> None:
    """Every shape asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--kernels", action="store_true", help="time the kernels alone, by several blocks")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of one pass")
    parser.add_argument("--rates", action="store_true", help="leave out the answers, which take two compiles")
    parser.add_argument("--requests", type=int, default=2048, help="Hugging Face's plain recurrences take their time")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if asked.kernels:
        kernels()
    for name in asked.shapes:
        if not asked.rates:
            checked(name)
        timed(name, asked.requests, asked.profile)
        torch.cuda.empty_cache()


def model_of(name: str, dtype: torch.dtype) -> Any:
    """The shape's model with the same random weights in any dtype."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, SHAPES[name].config)(**SHAPES[name].sizes)
    return transformers.AutoModel.from_config(config, dtype=torch.float32).eval().to(dtype)


def texts(lengths: Iterator[int] | list[int]) -> list[Any]:
    """Pseudorandom ids."""
    generator = np.random.default_rng(0)
    return [generator.integers(5, 30000, length) for length in lengths]


def alone(name: str, dtype: torch.dtype, requests: list[Any]) -> Tensor:
    """Hugging Face's normalised vectors of each request by itself."""
    run = Padded(model_of(name, dtype).cuda(), SHAPES[name].pooling)
    made = [run(ids, torch.ones_like(ids)) for ids in (torch.from_numpy(one)[None].cuda() for one in requests)]
    return torch.nn.functional.normalize(torch.cat(made).float(), dim=1).cpu()


def compiled(name: str, dtype: torch.dtype) -> Any:
    """Headrace's, which must run packed."""
    served = headrace.compile(
        model_of(name, dtype), target="cuda", pooling=SHAPES[name].pooling, force=True, progress=False
    )
    said = served.explain()
    assert "packed: sequences follow one another" in said, said
    return served


def vectors(served: Any, requests: list[Any]) -> Tensor:
    """What it answers, normalised."""
    made = torch.from_numpy(np.stack([np.asarray(one) for one in served(requests)]))
    return torch.nn.functional.normalize(made.float(), dim=1)


def checked(name: str) -> None:
    """Contract D1 in float32 and in bfloat16."""
    requests = texts(list(CHECKED))
    wanted = alone(name, torch.float32, requests)
    found = vectors(compiled(name, torch.float32), requests)
    worst, cosine = float((found - wanted).abs().max()), float((found * wanted).sum(1).min())
    print(f"{name}, float32: differs by {worst:.1e} (1e-4 allowed), cosine at least {cosine:.7f}", flush=True)
    assert worst <= 1e-4
    assert cosine >= 1 - 1e-5
    theirs = 1 - float((alone(name, DTYPE, requests) * wanted).sum(1).min())
    ours = 1 - float((vectors(compiled(name, DTYPE), requests) * wanted).sum(1).min())
    print(f"{name}, bfloat16: 1 - cosine {ours:.1e} at worst, Hugging Face's own {theirs:.1e}", flush=True)
    assert ours <= 2 * theirs + 1e-4


def timed(name: str, count: int, profile: bool) -> None:
    """Tokens a second beside Hugging Face's best padded batch."""
    requests = texts(draw()[:count])
    tokens, rates = sum(map(len, requests)), dict[int, float]()
    peer = [Padded(model_of(name, DTYPE).cuda(), SHAPES[name].pooling)]
    for batch in (32, 128):
        batches = list(padded(requests, batch))
        try:
            rates[batch] = tokens / median_seconds(lambda held=batches: peer[0].over(held), 1)
        except torch.OutOfMemoryError as error:
            print(f"{name}: Hugging Face, batch {batch}: {str(error).partition('. GPU')[0]}", flush=True)
            continue
        print(f"{name}: Hugging Face, batch {batch}: {rates[batch]:,.0f} tokens/s", flush=True)
    peer.clear()
    torch.cuda.empty_cache()
    served = compiled(name, DTYPE)
    rate = tokens / median_seconds(lambda: served(requests))
    print(f"{name}: Headrace: {rate:,.0f} tokens/s, {rate / max(rates.values()):.1f}x", flush=True)
    if profile:
        profiled(served, requests)


def kernels() -> None:
    """Each recurrence that goes in chunks on a row of the draw, by the blocks that can be launched."""
    from triton.testing import do_bench

    from headrace.backends.kernels.attention.op import listed
    from headrace.backends.kernels.recurrent.chunk_scan import chunk_scanned
    from headrace.backends.kernels.recurrent.delta_rule import delta_ruled

    bounds = np.cumsum([0, *draw()])
    offsets = torch.tensor(bounds[bounds <= 16384], dtype=torch.int32).cuda()
    scanned, ruled = scan_operands(), delta_operands()

    def scan(blocks: list[int]) -> None:
        chunk_scanned(*scanned, offsets, blocks)

    def rule(blocks: list[int]) -> None:
        delta_ruled(*ruled, offsets, listed(offsets, 16384, blocks[0]), blocks)

    for run in (scan, rule):
        found = []
        for blocks in map(list, BLOCKS):
            try:
                found.append((1e3 * do_bench(partial(run, blocks), warmup=5, rep=30, return_mode="median"), blocks))
            except Exception as error:  # too large for the device
                print(f"{run.__name__} {blocks}: {type(error).__name__}", flush=True)
        for microseconds, blocks in sorted(found)[:8]:
            print(f"{run.__name__} {blocks}: {microseconds:.0f} microseconds", flush=True)


def scan_operands() -> tuple[Any, ...]:
    """Mamba-2 130M's: 24 heads of 64, a state of 128."""
    row = torch.randn(1, 16384, 1536 + 256, device="cuda", dtype=DTYPE)
    x, b, c = row.split((1536, 128, 128), 2)
    dt, a = torch.randn(1, 16384, 24, device="cuda", dtype=DTYPE), -torch.rand(24, device="cuda") * 15 - 1
    rest = torch.ones(24, device="cuda"), torch.full((24,), -4.0, device="cuda"), True, 0.0, None
    return x.unflatten(2, (24, 64)), dt, a, b[:, :, None], c[:, :, None], *rest


def delta_operands() -> tuple[Any, ...]:
    """Qwen3-Next's: 16 key heads and 32 value heads of 128."""
    q, k = torch.randn(2, 1, 16384, 16, 128, device="cuda", dtype=DTYPE).unbind()
    v = torch.randn(1, 16384, 32, 128, device="cuda", dtype=DTYPE)
    g, beta = torch.randn(2, 1, 16384, 32, device="cuda").unbind()
    return q, k, v, -g.exp(), beta.sigmoid().to(DTYPE), True


if __name__ == "__main__":
    main()
