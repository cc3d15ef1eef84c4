"""A corpus by one process, and by workers of Ray: python benchmarks/ray_workers.py [MODEL] [--texts 2000] [--workers 2]

MODEL embeds, and may be what `headrace compile` wrote; else it is MiniLM with its real weights. The rows of both are
compared. Ray's clock starts when its workers have read the model and answered once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from serve import prose

import headrace
from headrace.examples import folder

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    source = given.model or str(folder("minilm"))
    saved = (Path(source) / "headrace.json").is_file()
    model = headrace.load(source) if saved else headrace.compile(source, target=given.target)
    texts = prose(given.texts)
    with tempfile.TemporaryDirectory() as scratch:
        path = model.save(Path(scratch) / "model")
        embedder = headrace.Embedder(path, trust=True, truncate=True)
        wanted, alone = _one_process(embedder, texts)
        found, together = _workers(path, texts, given.workers)
    worst = float(np.abs(found - wanted).max())
    print(
        f"{model.target}, {model.dtype}, {os.cpu_count()} cores; {len(texts)} texts; rows differ by {worst:.1e} at most"
    )
    print(f"one process  {len(texts) / alone:8.1f} texts/s")
    print(f"{given.workers} workers    {len(texts) / together:8.1f} texts/s, {alone / together:.2f} of one process")


def _one_process(embedder: headrace.Embedder, texts: list[str]) -> tuple[np.ndarray[Any, Any], float]:
    embedder({"text": texts[:BATCH]})
    began, rows = time.perf_counter(), []
    for begin in range(0, len(texts), BATCH):
        rows.append(embedder({"text": texts[begin : begin + BATCH]})["embedding"])
    return np.concatenate(rows), time.perf_counter() - began


def _workers(path: Path, texts: list[str], workers: int) -> tuple[np.ndarray[Any, Any], float]:
    root = str(Path(__file__).parents[1])
    variables = {"PYTHONPATH": os.pathsep.join([root, *sys.path]), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    try:
        actors = [_Worker.remote(str(path)) for _ in range(workers)]
        ray.get([actor.embed.remote(texts[:BATCH]) for actor in actors])
        began = time.perf_counter()
        pool = ray.util.ActorPool(actors)
        parts = [texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH)]
        rows = list(pool.map(lambda actor, part: actor.embed.remote(part), parts))
        return np.concatenate(rows), time.perf_counter() - began
    finally:
        ray.shutdown()


@ray.remote(num_cpus=1)
class _Worker:
    def __init__(self, path: str) -> None:
        self._embedder = headrace.Embedder(path, trust=True, truncate=True)

    def embed(self, texts: list[str]) -> np.ndarray[Any, Any]:
        return self._embedder({"text": texts})["embedding"]


if __name__ == "__main__":
    main()
