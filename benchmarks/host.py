"""What the host does for a request around the device's work: python benchmarks/host.py [--requests N] [--profile FORM]

Nanoseconds a request from ids to vectors, of requests of 4 to 32 tokens, with an executable that answers zeros at once:
reading, checking, planning, assembling and collecting, in each form in which ids may come, for both layouts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
import transformers

import headrace
from headrace.ir import OFFSETS, Layout, Program
from headrace.runtime.model import CompiledModel
from headrace.target import parse_target

WIDTH, VOCABULARY = 384, 30522  # of MiniLM
# Tokens in a step of a GPU.
STEP_TOKENS = 16384
ROUNDS = 7


class Zeros:
    """An executable that answers at once."""

    def __init__(self) -> None:
        self.calls = 0
        self._answers = np.zeros((STEP_TOKENS, WIDTH), np.float32)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        self.calls += 1
        rows = len(inputs[OFFSETS]) - 1 if OFFSETS in inputs else len(inputs["input_ids"])
        return self._answers[:rows]

    def save(self, path: Path) -> None:
        raise NotImplementedError


class Host:
    """A target without a device."""

    name, suffix, dtypes, libraries, runs_code = "host", ".none", ("float32",), (), False
    step_tokens, target, fills_rows = STEP_TOKENS, parse_target("reference"), True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def layout_of(self, program: Program) -> Layout:
        return self.layout

    def check(self, compiles: bool) -> None: ...

    def feed(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return inputs

    def fetch(self, output: Any) -> Any:
        return output

    def compile(self, program: Program) -> Zeros:
        return Zeros()

    def load(self, path: Path, program: Program) -> Zeros:
        raise NotImplementedError


def analysed() -> Program:
    """The program of a small model of that width, whose numbers do not matter here."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=12, intermediate_size=64
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    return headrace.compile(model, target="reference", pooling="mean", progress=False).program


def forms(count: int) -> dict[str, Any]:
    """The same requests in every form in which ids may come."""
    chance = np.random.default_rng(0)
    lengths = chance.integers(4, 33, count)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids = chance.integers(5, VOCABULARY, offsets[-1])
    arrays = np.split(ids, offsets[1:-1])
    padded = np.zeros((count, 32), np.int64)
    padded[np.arange(32) < lengths[:, None]] = ids
    return {
        "ids and offsets": headrace.Ragged(ids, offsets),
        "int32": headrace.Ragged(ids.astype(np.int32), offsets.astype(np.int32)),
        "Arrow lists": pyarrow.ListArray.from_arrays(offsets.astype(np.int32), ids.astype(np.int32)),
        "padded, lengths": (padded, lengths),
        "list of arrays": arrays,
        "list of lists": [one.tolist() for one in arrays],
    }


def asked(model: CompiledModel, form: str, given: Any) -> Any:
    return model(headrace.Ragged.from_padded(*given) if form == "padded, lengths" else given)


def fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of some rounds: what else the machine does is no part of it."""
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32_768)
    parser.add_argument("--profile", help="a form whose functions are listed by their time")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    program, requests = analysed(), forms(given.requests)
    models = {layout: CompiledModel(program, Host(layout), None) for layout in (Layout.PACKED, Layout.PADDED)}
    for layout, model in models.items():
        wanted = np.stack(model(requests["list of arrays"][:64]))
        assert wanted.shape == (64, WIDTH), wanted.shape
        assert model.engine.described().form.layout is layout
    print(f"{given.requests} requests of 4 to 32 tokens, processor time of the host, ns a request\n")
    print(f"| ids | {' | '.join(models)} |\n|---|---:|---:|")
    for form, held in requests.items():
        took = [fastest(lambda: asked(model, form, held)) for model in models.values()]  # noqa: B023
        print(f"| {form} | {' | '.join(f'{1e9 * one / given.requests:.0f}' for one in took)} |", flush=True)
    for layout, model in models.items() if given.profile else ():
        with cProfile.Profile() as found:
            asked(model, given.profile, requests[given.profile])
        print(f"\n{given.profile}, {layout}:")
        pstats.Stats(found).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
