"""Embedding on the CPU against its peers, in one run: python benchmarks/cpu.py

Prints real tokens a second, text in and vectors out, and the ratio to Hugging Face padded at batch 32. The
contenders take turns (A B C, C B A, ...), so that a machine that slows down slows them all.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import headrace
from headrace import examples

ROUNDS = 5
WORDS = (
    "water runs down the valley to a wheel that turns slowly while millers carry sacks of grain along narrow paths "
    "under old trees and children watch from wooden bridges as evening light falls over quiet fields"
).split()


def texts(count: int = 96, seed: int = 0) -> list[str]:
    """Sentences of 3 to 120 words, most of them short, as queries and passages are."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.0, 0.8, count), 3, 120).astype(int)
    return [" ".join(generator.choice(WORDS, n)) for n in lengths]


def hugging_face(folder: str, batch: int, dtype: torch.dtype) -> Callable[[list[str]], np.ndarray[Any, Any]]:
    """The eager model with SDPA, in the order given, padded to the longest of each batch, mean pooled."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def run(batch_of: list[str]) -> np.ndarray[Any, Any]:
        done = []
        for start in range(0, len(batch_of), batch):
            inputs = tokenizer(batch_of[start : start + batch], padding=True, truncation=True, return_tensors="pt")
            rows, mask = model(**inputs).last_hidden_state.float(), inputs["attention_mask"][:, :, None].float()
            done.append(torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1)).numpy())
        return np.concatenate(done)

    return run


def contenders(folder: str) -> dict[str, Callable[[list[str]], np.ndarray[Any, Any]]]:
    """Everything that is compared, the baseline first."""
    found = {"Hugging Face, batch 32": hugging_face(folder, 32, torch.float32)}
    found["Hugging Face, batch 8"] = hugging_face(folder, 8, torch.float32)
    try:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(folder, device="cpu")
        found["sentence-transformers"] = lambda batch: peer.encode(batch, show_progress_bar=False)
    except ImportError:
        pass
    found["Hugging Face, batch 32, bfloat16"] = hugging_face(folder, 32, torch.bfloat16)
    for dtype in ("float32", "bfloat16"):
        model = headrace.compile(folder, target="cpu", dtype=dtype)
        found[f"Headrace, {dtype}"] = model.embed
    return found


def main() -> None:
    """Time every contender and print the table."""
    warnings.simplefilter("ignore")
    folder = str(examples.folder("minilm"))
    runs, batch = contenders(folder), texts()
    tokens = sum(len(ids) for ids in _tokenizer(folder)(batch, truncation=True)["input_ids"])
    exact = next(iter(runs.values()))(batch)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    worst = {name: float((1 - (run(batch) * exact).sum(1)).max()) for name, run in runs.items()}
    for turn in range(ROUNDS):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            started = time.perf_counter()
            runs[name](batch)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians[next(iter(runs))]
    table = Table(title=f"MiniLM, {len(batch)} texts, {tokens} tokens, {torch.get_num_threads()} threads")
    for column in ("", "tokens/s", "ratio", "1 - cosine, worst"):
        table.add_column(column, justify="left" if not column else "right")
    for name, median in medians.items():
        table.add_row(name, f"{tokens / median:,.0f}", f"{base / median:.2f}", f"{worst[name]:.1e}")
    Console(width=100).print(table)


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


if __name__ == "__main__":
    main()
