"""One model on several GPUs of one host beside one of them: python benchmarks/devices_gpu.py [data] [tensor]

data: bert-base's shape in bfloat16, random weights, whole on each device; token ids in (as a list of arrays, and in one
array) and texts in, pooled vectors out on the host. The texts are Python's own documentation, and so is the vocabulary
that they are tokenised by. The rates of one device and of all are of the same requests, in one run.
tensor: Qwen3-0.6B's shape split over the devices: its vectors beside those of one device in float32, and its speed.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from embedding.timing import median_seconds
from embedding.workload import DTYPE, SHAPES, draw, prose, tokens_of

import headrace

# Draws of 4096 requests: of one draw the first and the last row weigh most.
DRAWS = (1, 8)
VOCABULARY = 30522


def main() -> None:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["data", "tensor"], help="data, tensor")
    parser.add_argument("--devices", default="0-1", help="as a target names them")
    parser.add_argument("--profile", action="store_true", help="also what the calling process does in a call")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "data" in asked.parts:
        replicas(f"cuda:{asked.devices}", asked.profile)
    if "tensor" in asked.parts:
        split(f"cuda:{asked.devices}")


def replicas(target: str, profile: bool) -> None:
    """The rates of one device and of all, and how far their vectors are from one another."""
    import transformers

    torch.manual_seed(0)
    shape, tokenizer = SHAPES["bert-base"], wordpiece()
    module = transformers.AutoModel.from_config(transformers.BertConfig(), dtype=DTYPE).eval()
    options: dict[str, Any] = {"pooling": shape.pooling, "tokenizer": tokenizer, "progress": False}
    one = timed("one device", lambda: headrace.compile(module, target="cuda:0", **options))
    all_ = timed(target, lambda: headrace.compile(module, target=target, **options))
    print("\n| bert-base, bfloat16 | requests | tokens | one device, tok/s | all, tok/s | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for draws in DRAWS:
        lengths = draw() * draws
        generator = np.random.default_rng(0)
        ids = [generator.integers(5, 30000, count) for count in lengths]
        whole = headrace.Ragged(np.concatenate(ids), np.cumsum([0, *lengths]))
        texts = [f"{text} {number}" for number, text in enumerate(prose(lengths))]
        row("ids in, a list", len(ids), sum(lengths), one, all_, lambda model, ids=ids: model(ids))
        row("ids in, one array", len(ids), sum(lengths), one, all_, lambda model, whole=whole: model(whole))
        read = tokens_of(tokenizer, texts)
        row("texts in", len(texts), read, one, all_, lambda model, texts=texts: model.embed(texts, truncate=True))
        if profile:
            profiled(lambda whole=whole: all_(whole))
            profiled(lambda texts=texts: all_.embed(texts, truncate=True))
    got, wanted = all_(whole), one(whole)
    cosine = (got * wanted).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(wanted, axis=1)
    print(f"\n1 - cosine of the vectors of all devices and of one: at most {1 - cosine.min():.1e}", flush=True)
    few = ids[:256]
    row("a vector a token", 256, sum(map(len, few)), one, all_, lambda model: model(few, task="token_embed"))
    all_.close()


def row(name: str, count: int, tokens: int, one: Any, all_: Any, run: Callable[[Any], Any]) -> None:
    """A line of the table."""
    rates = [tokens / median_seconds(lambda model=model: run(model)) for model in (one, all_)]
    print(
        f"| {name} | {count:,} | {tokens:,} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f} |",
        flush=True,
    )


def split(target: str) -> None:
    """A model in parts: its distance from the whole one in float32, and the speed of both."""
    import transformers

    shape = SHAPES["qwen3-0.6b"]
    lengths = draw()[:1024]
    generator = np.random.default_rng(0)
    ids = [generator.integers(5, 30000, count) for count in lengths]
    print(
        "\n| qwen3-0.6b | one, tok/s | split, tok/s | 16 tokens alone, one, ms | split, ms | differ by | 1 - cosine |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for dtype in (torch.float32, DTYPE):
        torch.manual_seed(0)
        module = transformers.AutoModel.from_config(transformers.Qwen3Config(**shape.sizes), dtype=dtype).eval()
        models = [
            headrace.compile(module, target="cuda:0", pooling=shape.pooling, progress=False),
            headrace.compile(module, target=target, parallel="tensor", pooling=shape.pooling, progress=False),
        ]
        rates = [sum(lengths) / median_seconds(lambda model=model: model(ids), passes=3) for model in models]
        alone = [median_seconds(lambda model=model: model([ids[0][:16]]), passes=50) * 1e3 for model in models]
        wanted, got = (np.stack(model(ids)) for model in models)
        cosine = (got * wanted).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(wanted, axis=1)
        cells = [f"{rate:,.0f}" for rate in rates] + [f"{time_:.2f}" for time_ in alone]
        cells += [f"{abs(got - wanted).max():.1e} of {abs(wanted).max():.1f}", f"{1 - cosine.min():.1e}"]
        print(f"| {str(dtype).removeprefix('torch.')} | {' | '.join(cells)} |", flush=True)
        models[1].close()
        del models
        torch.cuda.empty_cache()


def timed(name: str, make: Callable[[], Any]) -> Any:
    """What is made, and a line that says how long it took."""
    started = time.perf_counter()
    made = make()
    print(f"{name}: compiled in {time.perf_counter() - started:.1f} s", flush=True)
    return made


def profiled(run: Callable[[], Any]) -> None:
    """What the calling process does in one call."""
    found = cProfile.Profile()
    found.runcall(run)
    pstats.Stats(found).sort_stats("tottime").print_stats(14)


def wordpiece() -> Any:
    """A tokenizer as BERT's, whose vocabulary is of the documentation that every Python brings."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertTokenizerFast

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(topics.values(), trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special))
    ends = [("[CLS]", special.index("[CLS]")), ("[SEP]", special.index("[SEP]"))]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return BertTokenizerFast(tokenizer_object=made, model_max_length=512)


if __name__ == "__main__":
    main()
