"""Embedding on one NVIDIA GPU beside what people use, in one run: python benchmarks/gpu.py [shape ...] [--plot FILE]

Random weights of real shapes in bfloat16, 4096 requests of 8 to 512 tokens (median 94, mean 123). Rates count real
tokens: ids in, pooled vectors out on the host. Text in: Python's own documentation, cut to
about those lengths and tokenised inside.
The peers' batches lie on the device, padded, longest first, before their clock starts; ours begin on the host.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headrace

DTYPE = torch.bfloat16
PASSES, LATENCIES = 5, 200
ONE = (16, 128, 512)


@dataclass
class Shape:
    """A model's sizes, how its vectors are pooled, and whether its attention is causal."""

    config: str
    pooling: str = "mean"
    sizes: dict[str, Any] = field(default_factory=dict)


SHAPES = {
    "bert-base": Shape("BertConfig"),
    "xlmr-large": Shape(
        "XLMRobertaConfig",
        sizes={
            "vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "intermediate_size": 4096, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
        },
    ),
    "modernbert-base": Shape("ModernBertConfig"),
    "qwen3-0.6b": Shape(
        "Qwen3Config",
        "last",
        {
            "vocab_size": 151669, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        },
    ),
}  # fmt: skip


@dataclass
class Row:
    """What was measured of one contender; None where it was not."""

    name: str
    rate: float | None
    text_rate: float | None = None
    first: float | None = None
    warm: float | None = None
    latencies: list[tuple[float, float]] = field(default_factory=list)


def draw() -> list[int]:
    """Lengths as texts have them."""
    generator = torch.Generator().manual_seed(7)
    return torch.exp(torch.randn(4096, generator=generator) * 0.8 + 4.5).round().clamp(8, 512).long().tolist()


def prose(lengths: list[int]) -> list[str]:
    """Texts of about those lengths in tokens, from the documentation that every Python brings."""
    from pydoc_data.topics import topics

    words = [word for text in topics.values() for word in text.split()] * 8
    begins = np.cumsum([0, *lengths]) * 3 // 5
    return [" ".join(words[begin:end]) for begin, end in itertools.pairwise(begins)]


def matmul_rate() -> float:
    """FLOP/s of a large product on random data: the peak that shares are of."""
    from triton.testing import do_bench

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=DTYPE) for _ in range(2))
    return 2 * 8192**3 / (do_bench(lambda: a @ b, warmup=50, rep=200, return_mode="median") / 1e3)


def flops(config: Any, lengths: list[int], causal: bool) -> float:
    """Of the products of a packed run."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    keys = (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * size
    queries, gated = config.num_attention_heads * size, hasattr(config, "rope_parameters")
    products = hidden * (2 * queries + 2 * keys) + (3 if gated else 2) * hidden * config.intermediate_size
    squares = float((np.array(lengths, np.float64) ** 2).sum())
    return 2 * layers * products * sum(lengths) + 4 * layers * queries * squares * (0.5 if causal else 1)


def median_seconds(run: Callable[[], Any], passes: int = PASSES) -> float:
    """Of one call, after one that is not timed."""
    times = []
    for _ in range(passes + 1):
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def latencies(run: Callable[[np.ndarray[Any, Any]], Any]) -> list[tuple[float, float]]:
    """p50 and p99 in milliseconds of single requests, ids on the host to vector on the host."""
    found = []
    for length in ONE:
        ids = np.random.default_rng(length).integers(5, 30000, length)
        times = []
        for _ in range(LATENCIES + 20):
            started = time.perf_counter()
            run(ids)
            times.append(1e3 * (time.perf_counter() - started))
        cut = statistics.quantiles(times[20:], n=100)
        found.append((cut[49], cut[98]))
    return found


class Padded:
    """A Hugging Face model, or a compiled one, over padded batches."""

    def __init__(self, model: Any, pooling: str) -> None:
        self.model, self.pooling = model, pooling
        self.options = {"use_cache": False} if pooling == "last" else {}

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows = self.model(input_ids=ids, attention_mask=mask, **self.options).last_hidden_state
        if self.pooling == "last":
            return rows[torch.arange(len(rows), device=rows.device), mask.sum(1) - 1]
        return (rows * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    def over(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Every batch, its vectors copied to the host."""
        for ids, mask in batches:
            self(ids, mask).float().cpu()

    def one(self, ids: np.ndarray[Any, Any]) -> None:
        """One request."""
        given = torch.from_numpy(ids)[None].cuda()
        self(given, torch.ones_like(given)).float().cpu()


def padded(requests: list[Any], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device, longest first."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i]))
    for start in range(0, len(order), batch):
        rows = [requests[i] for i in order[start : start + batch]]
        ids = np.zeros((len(rows), len(rows[0])), np.int64)
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        yield torch.from_numpy(ids).cuda(), torch.from_numpy(mask).cuda()


def peers(model: Any, shape: Shape, requests: list[Any], compiled: bool) -> Iterator[Row]:
    """Hugging Face padded at batch 32 and at its best batch, then compiled."""
    tokens = sum(map(len, requests))
    model = model.cuda()
    eager = Padded(model, shape.pooling)
    rates = {}
    for batch in (32, 128, 256):
        batches = list(padded(requests, batch))
        rates[batch] = tokens / median_seconds(lambda held=batches: eager.over(held), 2)
    yield Row("Hugging Face, batch 32", rates[32], latencies=latencies(eager.one))
    best = max(rates, key=lambda batch: rates[batch])
    if best != 32:
        yield Row(f"Hugging Face, best batch ({best})", rates[best])
    if compiled:
        run, batches = Padded(torch.compile(model, dynamic=True), shape.pooling), list(padded(requests, 256))
        started = time.perf_counter()
        run.over(batches)
        first = time.perf_counter() - started
        yield Row("torch.compile, batch 256", tokens / median_seconds(lambda: run.over(batches), 2), first=first,
                  latencies=latencies(run.one))  # fmt: skip
        torch._dynamo.reset()
    model.cpu()


def sentence_transformers(model: Any, shape: Shape, tokenizer: Any, texts: list[str]) -> Iterator[Row]:
    """Its encode, where it is installed."""
    try:
        from sentence_transformers import SentenceTransformer, models
    except ImportError:
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        words = models.Transformer(folder, max_seq_length=512, model_args={"dtype": DTYPE})
    mode = "lasttoken" if shape.pooling == "last" else "mean"
    peer = SentenceTransformer(modules=[words, models.Pooling(model.config.hidden_size, mode)], device="cuda")
    seconds = median_seconds(lambda: peer.encode(texts, batch_size=128, show_progress_bar=False), 2)
    yield Row("sentence-transformers, batch 128", None, text_rate=tokens_of(tokenizer, texts) / seconds)


def tokens_of(tokenizer: Any, texts: list[str]) -> int:
    """Real tokens in texts."""
    return sum(map(len, tokenizer(texts, truncation=True, max_length=512)["input_ids"]))


def ours(model: Any, shape: Shape, requests: list[Any], tokenizer: Any, texts: list[str]) -> tuple[Row, Any]:
    """Headrace through its public calls."""
    from torch._dynamo.utils import counters

    started = time.perf_counter()
    served = headrace.compile(model, target="cuda", pooling=shape.pooling, tokenizer=tokenizer, progress=False)
    first = time.perf_counter() - started
    graphs = counters["stats"]["unique_graphs"]
    row = Row("Headrace", sum(map(len, requests)) / median_seconds(lambda: served(requests)), first=first)
    row.latencies = latencies(lambda ids: served([ids]))
    if tokenizer is not None:
        row.text_rate = tokens_of(tokenizer, texts) / median_seconds(
            lambda: served.embed(texts, truncate=True, progress=False)
        )
    generator = np.random.default_rng(1)
    served([generator.integers(5, 30000, n) for n in generator.integers(1, 513, 10000)])
    assert counters["stats"]["unique_graphs"] == graphs, "something was compiled after warm-up"
    with tempfile.TemporaryDirectory() as folder:
        served.save(folder + "/saved")
        torch._dynamo.reset()
        started = time.perf_counter()
        headrace.load(folder + "/saved")(requests[:1])
        row.warm = time.perf_counter() - started
    return row, served


def report(name: str, config: Any, rows: list[Row], lengths: list[int], peak: float, causal: bool) -> None:
    """The table of one shape."""
    work = flops(config, lengths, causal) / sum(lengths)
    print(f"\n### {name}: {sum(lengths)} tokens in {len(lengths)} requests\n")
    print("| | ids in, ktok/s | x batch 32 | share of peak | text in, ktok/s | first run, s | load, s | "
          + " | ".join(f"{n} tokens p50 / p99, ms" for n in ONE) + " |")  # fmt: skip
    print("|---|" + "---:|" * (6 + len(ONE)))
    for row in rows:

        def shown(value: float | None, digits: int = 0, by: float = 1) -> str:
            return "" if value is None else f"{value / by:,.{digits}f}"

        waits = [f"{p50:.2f} / {p99:.2f}" for p50, p99 in row.latencies] or [""] * len(ONE)
        share = f"{row.rate / rows[0].rate:.1f} | {row.rate * work / peak:.0%}" if row.rate else " | "
        print(f"| {row.name} | {shown(row.rate, 0, 1e3)} | {share} | "
              f"{shown(row.text_rate, 0, 1e3)} | {shown(row.first)} | {shown(row.warm, 1)} | {' | '.join(waits)} |",
              flush=True)  # fmt: skip


def profiled(served: Any, requests: list[Any]) -> None:
    """The kernels of one pass by the time that they take, and where the device waits."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        started = time.time_ns()
        served(requests)
        ended = time.time_ns()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    whole = sum(event.self_device_time_total for event in events)
    kernels = [event for event in found.profiler.kineto_results.events() if event.device_type().name == "CUDA"]
    begun = min(kernel.start_ns() for kernel in kernels)
    done = max(kernel.start_ns() + kernel.duration_ns() for kernel in kernels)
    print(f"\nOne pass takes {(ended - started) / 1e6:.1f} ms: {(begun - started) / 1e6:.1f} before the device begins, "
          f"{(done - begun) / 1e6:.1f} while it works, {(ended - done) / 1e6:.1f} after it")  # fmt: skip
    print(f"\nKernels of one pass, {whole / 1e3:.1f} ms:\n\n| kernel | ms | share | calls |\n|---|---:|---:|---:|")
    for event in events[:14]:
        time_ = event.self_device_time_total
        print(f"| {event.key[:70]} | {time_ / 1e3:.2f} | {time_ / whole:.1%} | {event.count} |")


def plotted(tables: dict[str, list[Row]], file: str) -> None:
    """Bars of ids-in rates."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(tables), figsize=(4 * len(tables), 3.4), layout="constrained")
    for axis, (name, rows) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        timed = [row for row in reversed(rows) if row.rate]
        bars = axis.barh([row.name for row in timed], [row.rate / 1e3 for row in timed])
        axis.bar_label(bars, fmt="{:,.0f}")
        axis.set_title(f"{name}, thousand real tokens/s")
        axis.margins(x=0.25)
    figure.savefig(file)


def main() -> None:
    """Every shape asked for."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--tokenizer", help="a folder whose tokenizer the text-in rates use; else they are left out")
    parser.add_argument("--only-ours", action="store_true", help="leave the peers out")
    parser.add_argument("--no-compiled-peer", action="store_true", help="leave torch.compile out, which takes a minute")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of one pass")
    parser.add_argument("--plot", help="write bars to this file, by matplotlib")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.tokenizer) if asked.tokenizer else None
    lengths, peak, tables = draw(), matmul_rate(), dict[str, list[Row]]()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a product reaches {peak / 1e12:.0f} TFLOP/s")
    for name in asked.shapes:
        shape, generator = SHAPES[name], np.random.default_rng(0)
        torch.manual_seed(0)
        config = getattr(transformers, shape.config)(**shape.sizes)
        model = transformers.AutoModel.from_config(config, dtype=DTYPE).eval()
        requests = [generator.integers(5, 30000, n) for n in lengths]
        rows = [] if asked.only_ours else list(peers(model, shape, requests, not asked.no_compiled_peer))
        if tokenizer is not None and not asked.only_ours:
            rows += sentence_transformers(model, shape, tokenizer, prose(lengths))
        row, served = ours(model, shape, requests, tokenizer, prose(lengths))
        tables[name] = [*rows, row]
        report(name, config, tables[name], lengths, peak, shape.pooling == "last")
        if asked.profile:
            profiled(served, requests)
        del model, served
        torch.cuda.empty_cache()
    if asked.plot:
        plotted(tables, asked.plot)


if __name__ == "__main__":
    main()
