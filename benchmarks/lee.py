"""MiniLM's vectors of 50 news texts against what people say of their likeness, beside sentence-transformers.

    python -m benchmarks.lee [--target cpu] [--quantize int8]

The texts and the mean of people's judgements of each two (Lee, Pincombe and Welsh, 2005) lie in gensim's wheel, of
which nothing is run. Exits 1 where a correlation differs from sentence-transformers' in its first four digits, but of a
quantised model, which is shown beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

import headrace
from headrace import examples
from headrace.errors import LoadError
from headrace.examples import wheels

# The wheel is another on each platform; its data are the same.
GENSIM = wheels.Wheel("gensim", "4.4.0", "", 28)
INSIDE = "gensim/test/test_data"
TEXTS, JUDGED = "lee.cor", "similarities0-1.txt"
FILES = {
    TEXTS: "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
    JUDGED: "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
}
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DIGITS = 4


@dataclass(frozen=True)
class Row:
    """The two correlations of one precision."""

    precision: str
    ours: float
    theirs: float

    @property
    def holds(self) -> bool:
        """Whether they agree in so many digits."""
        return round(self.ours, DIGITS) == round(self.theirs, DIGITS)

    def __str__(self) -> str:
        verdict = f"equal to {DIGITS} digits" if self.holds else "DIFFERENT"
        return f"| {self.precision} | {self.ours:.6f} | {self.theirs:.6f} | {verdict} |"


@cache
def corpus() -> tuple[list[str], NDArray[np.float64]]:
    """The 50 texts, and how alike people find each two, 0 to 1: [50, 50], of which the part above the diagonal is read.

    Raises:
        LoadError: the wheel cannot be fetched, or its files are others.
    """
    kept = examples.cache_folder() / "lee"
    if not all((kept / name).is_file() for name in FILES):
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as into:
            wheels.download(GENSIM, Path(into))
            with zipfile.ZipFile(next(Path(into).glob("*.whl"))) as archive:
                for name in FILES:
                    (kept / name).write_bytes(archive.read(f"{INSIDE}/{name}"))
    for name, digest in FILES.items():
        if hashlib.sha256((kept / name).read_bytes()).hexdigest() != digest:
            raise LoadError(f"{kept / name} is not that of {GENSIM.requirement}. Remove it, and it is fetched anew.")
    return (kept / TEXTS).read_text(encoding="latin-1").splitlines(), np.loadtxt(kept / JUDGED)


def vectors_of(stored: NDArray[Any], precision: str) -> NDArray[np.floating[Any]]:
    """Vectors to be compared by the cosine, of what a precision stores: of packed bits -1 and 1 each."""
    if precision == "binary":  # sentence-transformers' form: the bytes less 128
        return np.unpackbits((stored.astype(np.int16) + 128).astype(np.uint8), axis=-1) * 2.0 - 1
    if precision == "ubinary":
        return np.unpackbits(stored, axis=-1) * 2.0 - 1
    return stored.astype(np.float64)


def correlation(stored: NDArray[Any], precision: str) -> float:
    """Pearson's, of the cosines with people's judgements, over each two texts."""
    vectors = vectors_of(stored, precision)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    pairs = np.triu_indices(len(vectors), 1)
    return float(np.corrcoef((unit @ unit.T)[pairs], corpus()[1][pairs])[0, 1])


def rows(target: str, quantize: str | None = None) -> list[Row]:
    """A row a precision: both libraries read the same folder, texts and precision."""
    import sentence_transformers as st

    folder, (texts, _) = examples.folder("minilm"), corpus()
    ours, theirs = (
        headrace.compile(folder, target=target, quantize=quantize),
        st.SentenceTransformer(str(folder), device="cpu"),
    )
    found = []
    for precision in PRECISIONS:
        mine = ours.embed(texts, precision=precision, truncate=True)
        other = np.asarray(theirs.encode(texts, precision=precision))
        found.append(Row(precision, correlation(mine, precision), correlation(other, precision)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="reference")
    parser.add_argument("--quantize")
    asked = parser.parse_args()
    made = rows(asked.target, asked.quantize)
    print("Pearson's correlation of 1,225 cosines with people's judgements:\n")
    print("| vectors | Headrace | sentence-transformers | |\n|---|---:|---:|---|")
    print(*made, sep="\n")
    sys.exit(asked.quantize is None and not all(row.holds for row in made))


if __name__ == "__main__":
    main()
