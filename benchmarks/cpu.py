"""Embedding on the CPU against its peers, in one run: python benchmarks/cpu.py [--model minilm] [--model bert-base]

    [--texts 2000] [--rounds 3] [--dtype float32] [--dtype bfloat16] [--dtype int8]

Mixed texts in, vectors out, and one query alone, on one thread: MiniLM's real weights, and random ones of bert-base's
shape. The contenders take turns (A B C, C B A, ...), so that a machine that slows down slows them all; seconds are
those of the processor, and a ratio is the median of the rounds' own ratios to sentence-transformers, with its spread.
onnxruntime runs what `target="onnx"` exports; OpenVINO, where it is installed, the same file on the same batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import headrace
from headrace import examples

Run = Callable[[list[str]], Any]
BASE = "sentence-transformers"
DTYPES = ["float32", "bfloat16", "int8"]
QUERIES = 40
WORDS = (
    "water runs down the valley to a wheel that turns slowly while millers carry sacks of grain along narrow paths "
    "under old trees and children watch from wooden bridges as evening light falls over quiet fields"
).split()
QUERY = ["how do millers carry grain along narrow paths in the evening"]


def texts(count: int = 96, seed: int = 0) -> list[str]:
    """Sentences of 3 to 120 words, most of them short, as queries and passages are."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.0, 0.8, count), 3, 120).astype(int)
    return [" ".join(generator.choice(WORDS, n)) for n in lengths]


def main() -> None:
    """Compile, take turns, print a table a model."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", action="append", choices=["minilm", "bert-base"])
    options.add_argument("--texts", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--dtype", action="append", choices=DTYPES)
    asked = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        for model in asked.model or ["minilm", "bert-base"]:
            folder = str(examples.folder("minilm")) if model == "minilm" else _bert_base(Path(scratch))
            runs = contenders(folder, asked.dtype or DTYPES, Path(scratch))
            measure(model, runs, texts(asked.texts), asked.rounds)


def _bert_base(scratch: Path) -> str:
    """Random weights of its shape as a sentence-transformers folder, with MiniLM's tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    plain, folder = scratch / "bert-plain", scratch / "bert-base"
    BertModel(BertConfig()).save_pretrained(plain)
    AutoTokenizer.from_pretrained(examples.folder("minilm")).save_pretrained(plain)
    backbone = modules.Transformer(str(plain), max_seq_length=256)
    SentenceTransformer(
        modules=[backbone, modules.Pooling(backbone.get_embedding_dimension()), modules.Normalize()], device="cpu"
    ).save(str(folder))
    return str(folder)


def contenders(folder: str, dtypes: list[str], scratch: Path) -> dict[str, Run]:
    """Everything that is compared, the baseline first."""
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(folder, device="cpu")
    found: dict[str, Run] = {BASE: lambda batch: peer.encode(batch, show_progress_bar=False)}
    exported = headrace.compile(folder, target="onnx", progress=False)
    exported.embed(QUERY)
    found["onnxruntime"] = exported.embed
    if (openvino := _openvino(folder, scratch)) is not None:
        found["OpenVINO"] = openvino
    for dtype in dtypes:
        how = {"quantize": dtype} if dtype == "int8" else {"dtype": dtype}
        found[f"Headrace, {dtype}"] = headrace.compile(folder, target="cpu", progress=False, **how).embed  # type: ignore[arg-type]
    return found


def _openvino(folder: str, scratch: Path) -> Run | None:
    """The exported file run by OpenVINO, in the precision that it takes by itself; None where it is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    model = headrace.compile(folder, target="onnx", progress=False)
    model.embed(QUERY)
    ((key, lane),) = model.engine.lanes.items()
    file = scratch / f"{Path(folder).name}.onnx"
    lane.executable.save(file)
    compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_NUM_THREADS": 1})
    names = {name for given in compiled.inputs for name in given.get_names()}

    def run(inputs: Any) -> NDArray[Any]:
        made: NDArray[Any] = compiled({name: value for name, value in inputs.items() if name in names})[0]
        return made

    model.engine.lanes[key] = replace(lane, executable=run)
    embed: Run = model.embed
    return embed


def measure(model: str, runs: dict[str, Run], batch: list[str], rounds: int) -> None:
    """Take turns, and print one row a contender."""
    exact, alone = (_unit(runs[BASE](given)) for given in (batch, QUERY))
    worst = {name: float((1 - (_unit(run(batch)) * exact).sum(1)).max()) for name, run in runs.items()}
    for name, run in runs.items():
        worst[name] = max(worst[name], float((1 - (_unit(run(QUERY)) * alone).sum(1)).max()))
    mixed: dict[str, list[float]] = {name: [] for name in runs}
    single: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            mixed[name].append(_seconds(runs[name], batch, 1))
            single[name].append(_seconds(runs[name], QUERY, QUERIES))
    table = Table(title=f"{model}: {len(batch)} texts, one thread, {torch.backends.cpu.get_cpu_capability()}")
    for column in ("", "texts/s", "ratio", "one query, ms", "ratio ", "1 - cosine, worst"):
        table.add_column(column, justify="left" if not column else "right")
    for name in runs:
        rate, query = len(batch) / statistics.median(mixed[name]), statistics.median(single[name]) * 1e3
        ratios = _ratio(mixed, name), _ratio(single, name)
        table.add_row(name, f"{rate:,.0f}", ratios[0], f"{query:.2f}", ratios[1], f"{worst[name]:.1e}")
    Console(width=120).print(table)


def _unit(rows: Any) -> NDArray[Any]:
    array = np.asarray(rows, np.float64)
    unit: NDArray[Any] = array / np.linalg.norm(array, axis=1, keepdims=True)
    return unit


def _seconds(run: Run, batch: list[str], times: int) -> float:
    """Of the processor, a call."""
    started = time.process_time()
    for _ in range(times):
        run(batch)
    return (time.process_time() - started) / times


def _ratio(spent: dict[str, list[float]], name: str) -> str:
    each = sorted(base / own for base, own in zip(spent[BASE], spent[name], strict=True))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


if __name__ == "__main__":
    main()
