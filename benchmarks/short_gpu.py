"""Short queries on one NVIDIA GPU beside Hugging Face padded and compiled: python benchmarks/short_gpu.py [shape ...]

Random weights of real shapes in bfloat16; 32,768 requests of 4 to 32 tokens, ids on the host in, pooled vectors on the
host out. Ours come in one array and as a list of arrays. The peer's batches lie on the device, padded, longest first,
before its clock starts; the best of three sizes counts.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from embedding.peers import Padded, padded
from embedding.timing import median_seconds
from embedding.workload import DTYPE, SHAPES, Shape

import headrace

COUNT, SHORTEST, LONGEST = 32_768, 4, 32
BATCHES = (512, 2048, 8192)
QUERIES = {
    "minilm": Shape(
        "BertConfig",
        sizes={"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "bert-base": SHAPES["bert-base"],
    "modernbert-base": SHAPES["modernbert-base"],
}


def main() -> None:
    """Every shape asked for."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(QUERIES), help=f"of {', '.join(QUERIES)}")
    parser.add_argument("--only-ours", action="store_true", help="leave the peer out")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    chance = np.random.default_rng(0)
    lengths = chance.integers(SHORTEST, LONGEST + 1, COUNT)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids = headrace.Ragged(chance.integers(5, 30000, offsets[-1]), offsets)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {COUNT} requests, {offsets[-1]} tokens\n")
    print("| shape | one array, requests/s | list of arrays | Hugging Face compiled | ours over it |")
    print("|---|---:|---:|---:|---:|")
    for name in asked.shapes:
        shape = QUERIES[name]
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(getattr(transformers, shape.config)(**shape.sizes), dtype=DTYPE)
        whole, listed = ours(model.eval(), shape, ids)
        peer = 0.0 if asked.only_ours else compiled_peer(model, shape, list(ids))
        over = f"{whole / peer:.2f}" if peer else ""
        print(f"| {name} | {whole:,.0f} | {listed:,.0f} | {peer:,.0f} | {over} |", flush=True)
        torch.cuda.empty_cache()


def ours(model: torch.nn.Module, shape: Shape, ids: headrace.Ragged) -> tuple[float, float]:
    """Requests a second of one array, and of a list of arrays; the same vectors."""
    served, arrays = headrace.compile(model, target="cuda", pooling=shape.pooling, progress=False), list(ids)
    found = served(ids, task="embed")
    assert found.shape == (len(ids), model.config.hidden_size), found.shape
    np.testing.assert_array_equal(found[:64], np.stack(served(arrays, task="embed")[:64]))
    return len(ids) / median_seconds(lambda: served(ids)), len(ids) / median_seconds(lambda: served(arrays))


def compiled_peer(model: torch.nn.Module, shape: Shape, arrays: list[np.ndarray]) -> float:
    """Requests a second of the best batch."""
    run = Padded(torch.compile(model.cuda(), dynamic=True), shape.pooling)
    rates = []
    for batch in BATCHES:
        batches = list(padded(arrays, batch))
        rates.append(len(arrays) / median_seconds(lambda held=batches: run.over(held), 3))
    torch._dynamo.reset()
    model.cpu()
    return max(rates)


if __name__ == "__main__":
    main()
