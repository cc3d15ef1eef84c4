"""Headrace, through its public calls."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch

import headrace
from embedding.timing import Row, latencies, median_seconds
from embedding.workload import Shape, tokens_of
from headrace.runtime.engine.quantization_gate import words


def ours(
    model: Any, shape: Shape, requests: list[Any], tokenizer: Any, texts: list[str], quantize: str | None = None
) -> tuple[Row, Any]:  # fmt: skip
    """A row for Headrace, and the compiled model. What quantising costs is printed and not judged."""
    from torch._dynamo.utils import counters

    started = time.perf_counter()
    served = headrace.compile(
        model, target="cuda", pooling=shape.pooling, tokenizer=tokenizer, quantize=quantize, force=True, progress=False
    )
    first = time.perf_counter() - started
    graphs = counters["stats"]["unique_graphs"]
    if served.quantized is not None:
        print(f"\n{words(served.quantized)}", flush=True)
    row = Row(
        f"Headrace, {quantize}" if quantize else "Headrace",
        sum(map(len, requests)) / median_seconds(lambda: served(requests)),
        first=first,
    )
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
