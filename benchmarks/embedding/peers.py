"""What people use: Hugging Face padded, torch.compile over it, sentence-transformers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedding.timing import Row, latencies, median_seconds
from embedding.workload import DTYPE, Shape, tokens_of


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
