"""Our attention kernel against torch's on a GPU, in one run: python benchmarks/kernel_gpu.py

Packed batches in bfloat16, q, k and v slices of one projection; medians of CUDA graphs. Cold is with the L2 cache
flushed before each call (a model's lies between), warm is one of twenty calls. `ours` has its tiles made on the device.
Bytes: q, k, v read once and the output written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from triton.testing import do_bench

from headrace.backends.kernels.attention import op
from headrace.backends.kernels.attention.op import Form
from headrace.ir import Window


class Shape(NamedTuple):
    """The attention of one layer."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    kind: str = "bidirectional"
    window: Window = Window()


SHAPES = (
    Shape("12 x 64", 12, 12, 64),
    Shape("16 x 64", 16, 16, 64),
    Shape("16/8 x 128 causal", 16, 8, 128, "causal"),
    Shape("16 x 128 causal", 16, 16, 128, "causal"),
    Shape("12 x 64 window 64", 12, 12, 64, "bidirectional", Window(64, 64)),
)
COLUMNS = "heads, torch, ours, x, x warm, ours warm, TFLOP/s, GB/s, bytes bound, differ".split(", ")


def draw(tokens: int, descending: bool) -> list[int]:
    """Lengths as texts have them: median 94, mean 123, 8 to 512. Sorted, a batch from the middle of 4096."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.exp(torch.randn(4096, generator=generator) * 0.8 + 4.5).round().clamp(8, 512).long()
    if descending:
        lengths = lengths.sort(descending=True)[0][1000:]
    return lengths[: int((lengths.cumsum(0) <= tokens).sum())].tolist()


def workloads() -> dict[str, list[int]]:
    found = {
        f"draw{', sorted' * descending}, {tokens}": draw(tokens, descending)
        for tokens in (16384, 65536)
        for descending in (False, True)
    }
    return found | {f"{n} x {32768 // n}": [n] * (32768 // n) for n in (16, 64, 128, 512, 2048, 8192)}


def captured(run: Callable[[], Tensor], calls: int = 1) -> Callable[[], None]:
    """The calls as a CUDA graph, so that no launch from Python is timed."""
    graph = torch.cuda.CUDAGraph()
    run()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph.replay


def cold(run: Callable[[], None]) -> float:
    """Milliseconds with the L2 cache flushed before."""
    return do_bench(run, warmup=5, rep=25, return_mode="median")


def warm(run: Callable[[], Tensor], calls: int = 20) -> float:
    """Milliseconds of one of many calls after each other."""
    return do_bench(captured(run, calls), warmup=2, rep=20, return_mode="median") / calls


def flops(shape: Shape, lengths: list[int]) -> float:
    """Of the scores that the mask shows."""
    left, right = shape.window
    seen = 0.0
    for n in lengths:
        position = torch.arange(n)
        first = (position - left).clamp(min=0) if left >= 0 else torch.zeros(n)
        last = (position + right).clamp(max=n - 1) if right >= 0 else torch.full((n,), n - 1)
        seen += float(((position if shape.kind == "causal" else last) - first + 1).sum())
    return 4 * seen * shape.heads * shape.dim


def measure(shape: Shape, lengths: list[int], bandwidth: float) -> str:
    """One row of the table."""
    tokens, widths = sum(lengths), [shape.heads * shape.dim, *[shape.kv_heads * shape.dim] * 2]
    fused = torch.randn(tokens, sum(widths), device="cuda", dtype=torch.bfloat16)
    q, k, v = (x.unflatten(1, (-1, shape.dim)) for x in fused.split(widths, 1))
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    longest, mean = max(lengths), tokens // len(lengths)
    form = Form(shape.dim**-0.5, shape.kind, shape.window)
    blocks = op.tuning_for(q, v, mean, form)
    tiles = op.listed(cu_seqlens, tokens, op.tile_rows(q, k, blocks))
    window = (-1, 0) if shape.kind == "causal" else tuple(shape.window)

    def theirs() -> Tensor:
        return varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=window)

    def ours() -> Tensor:
        return op.attended(q, k, v, tiles, blocks, form, None, None, op.attend_tiles)

    error = float((ours() - theirs()).abs().max())
    contenders = [captured(theirs), captured(ours)]
    # Taking turns, so that a card that slows down slows all.
    rounds = [[cold(run) for run in contenders] for _ in range(3)]
    peer, own = (sorted(times)[1] for times in zip(*rounds, strict=True))
    warm_peer, warm_own = warm(theirs), warm(ours)
    work, moved = flops(shape, lengths), 2 * tokens * shape.dim * 2 * (shape.heads + shape.kv_heads)
    return (
        f"| {shape.name} | {peer * 1e3:.1f} | {own * 1e3:.1f} | {peer / own:.2f} | {warm_peer / warm_own:.2f} | "
        f"{warm_own * 1e3:.1f} | {work / own / 1e9:.0f} | {moved / own / 1e6:.0f} | "
        f"{moved / bandwidth * 1e3:.1f} | {error:.0e} |"
    )


def main() -> None:
    """Measure the card's copy rate, then every shape on every workload."""
    source = torch.empty(1 << 30, device="cuda", dtype=torch.int8)
    bandwidth = 2 * source.numel() / do_bench(source.clone, warmup=20, rep=100, return_mode="median")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, a copy moves {bandwidth / 1e9:.2f} TB/s")
    cu_seqlens = torch.tensor([0, *draw(16384, False)], device="cuda").cumsum(0).int()
    listing = warm(lambda: op.listed(cu_seqlens, 16384, 64))
    print(f"Making the tiles of 16384 tokens, once a batch, in a graph: {listing * 1e3:.1f} microseconds")
    for name, lengths in workloads().items():
        print(f"\n**{name}**: {len(lengths)} sequences, {sum(lengths)} tokens, longest {max(lengths)}; microseconds\n")
        print(f"| {' | '.join(COLUMNS)} |")
        print("|" + "---|" * len(COLUMNS))
        for shape in SHAPES:
            print(measure(shape, lengths, bandwidth), flush=True)


if __name__ == "__main__":
    main()
