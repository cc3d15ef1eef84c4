"""Headrace beside sentence-transformers, a row a module, pooling, prompt, precision and activation: answers, no times.

    python -m benchmarks.parity_peers [--target reference] [--only WORD]

Ours are of a batch, theirs of each text alone, unpadded (contract D1), with a tokenizer that pads on either side.
Exits 1 where a row is outside of D1: vectors by the cosine, scores and weights by the largest difference.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import headrace
from benchmarks.peers import cases
from benchmarks.peers.case import Case

COSINE, SCORE = 1e-5, 1e-4
SIDES = ("right", "left")
VECTORS = ("module", "pooling", "prompt", "template", "backbone", "real")


@dataclass(frozen=True)
class Row:
    """What a line of the table says."""

    area: str
    what: str
    padding: str
    difference: float
    bound: float
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is within D1; a difference that is no number is not."""
        return self.difference <= self.bound

    def __str__(self) -> str:
        verdict = "within D1" if self.holds else f"OUTSIDE {self.note}".strip()
        return f"| {self.area} | {self.what} | {self.padding} | {self.difference:.1e} | {self.bound:.0e} | {verdict} |"


def distance(area: str, got: NDArray[Any], expected: NDArray[Any]) -> float:
    """1 less the worst cosine of vectors; else the largest difference, relative to the largest value above 1."""
    if got.shape != expected.shape:
        return float("inf")
    one, two = got.astype(np.float64), expected.astype(np.float64)
    if area in VECTORS:
        cosines = (one * two).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(two, axis=-1)
        return float(1 - cosines.min())
    return float(np.abs(one - two).max() / max(1.0, np.abs(two).max()))


def measured(case: Case, side: str, target: str) -> Row:
    """One row; what fails on the way is outside of D1, with its message."""
    bound = COSINE if case.area in VECTORS else SCORE
    with tempfile.TemporaryDirectory() as made:
        try:
            where = Path(made)
            torch.manual_seed(0)
            model = case.make(where)
            if (held := model.tokenizer) is not None and hasattr(held, "padding_side"):
                held.padding_side = side
            expected = np.stack([np.asarray(case.theirs(model, one)) for one in case.asked])
            source = model[0].auto_model.name_or_path if case.bare else where / "saved"
            if not case.bare:
                model.save_pretrained(str(where / "saved"))
            ours = headrace.compile(source, target=target, **case.options)
            got = np.asarray(case.ours(ours, case.asked))
            return Row(case.area, case.what, side, distance(case.area, got, expected), bound)
        except Exception as error:  # a row of the table, and the next ones too
            logging.debug("%s", traceback.format_exc())
            return Row(case.area, case.what, side, float("nan"), bound, str(error).splitlines()[0][:120])


def precisions() -> Iterator[Row]:
    """The numbers that differ, of equal floats."""
    import sentence_transformers as st

    from headrace.runtime.tasks.answers.precision import quantised, ranges_of, read_precision

    vectors = np.random.default_rng(0).standard_normal((256, 37)).astype(np.float32)
    others = np.random.default_rng(1).standard_normal((100, 37)).astype(np.float32)
    for name in ("int8", "uint8", "binary", "ubinary"):
        for what in ("own ranges", "calibrated", "given ranges") if name.endswith("int8") else ("signs",):
            options: dict[str, Any] = {
                "calibrated": {"calibration_embeddings": others}, "given ranges": {"ranges": ranges_of(others)},
            }.get(what, {})  # fmt: skip
            kind, ranges = read_precision(name, ranges_of(others) if options else None, 37)
            unequal = (
                quantised(vectors, kind, ranges) != st.quantize_embeddings(vectors, precision=name, **options)
            ).sum()
            yield Row("precision", f"{name}, {what}", "", float(unequal), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="reference")
    parser.add_argument("--only", default="", help="rows whose area or name holds this")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print("| | | pads on the | difference | bound | verdict |\n|---|---|---|---:|---:|---|")
    outside = total = 0
    chosen = [case for case in cases() if given.only in f"{case.area} {case.what}"]
    rows = (measured(case, side, given.target) for case in chosen for side in SIDES)
    for row in [] if given.only else precisions():
        print(row)
        total, outside = total + 1, outside + (not row.holds)
    while True:
        with contextlib.redirect_stderr(io.StringIO()):
            found = next(rows, None)
        if found is None:
            break
        print(found, flush=True)
        total, outside = total + 1, outside + (not found.holds)
    print(
        f"\n{total - outside} of {total} within D1; torch {torch.__version__}, transformers {transformers.__version__}"
    )
    sys.exit(bool(outside))


if __name__ == "__main__":
    main()
