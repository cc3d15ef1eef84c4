"""`headrace demo`: the whole path on real models, in under two minutes. Yields the lines that the command prints."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import headrace
from headrace.errors import InputError, TaskNotEnabledError
from headrace.examples import MODELS, folder
from headrace.examples.demo_decoder import write_decoder
from headrace.runtime.tools.cli.console import one_line
from headrace.runtime.tools.inspect.report import attention_table
from headrace.runtime.tools.inspect.tables import aligned, paragraph
from headrace.runtime.tools.inspect.words import summary

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten naps in the sun.",
    "The central bank raised interest rates.",
    "Borrowing money will cost more from now on.",
    "How do I reset my password?",
)
NAMES = "Please send the parcel to Sarah Connor, 12 Elm Street, Springfield, and call her on 555-0199."
TOKENS = [[5, 17, 42, 8], [3, 9]]


def shown(page: Path, target: str = "auto") -> Iterator[str]:
    """Show everything, a step at a time.

    Args:
        page: where the explain page is written.

    Raises:
        HeadraceError: weights cannot be fetched, or the target cannot run here.
    """
    _ = headrace.compile  # where torch is missing, this says so before anything is shown
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as scratch:
        yield from _similarities(page, target)
        yield from _entities(target)
        yield from _refusal(write_decoder(Path(scratch)), target)
    yield from ("", f"Next: open {page}, then try: headrace embed MODEL TEXT; headrace explain MODEL; headrace doctor.")


def _similarities(page: Path, target: str) -> Iterator[str]:
    yield from _heading("1. Embeddings", f"{MODELS['minilm'].about}.")
    weights = folder("minilm")
    yield "Compiling it, which takes half a minute on two cores ..."
    model = headrace.compile(weights, target=target)
    yield f"It runs on the target {model.target} in {model.dtype}."
    vectors = model.embed(SENTENCES)
    cosines = model.similarity(vectors, vectors)
    yield from ("", f"{len(vectors)} vectors of {vectors.shape[1]} numbers; the cosine of each pair:", "")
    yield from aligned(
        [(*(f"{cosine:5.2f}" for cosine in row), text) for row, text in zip(cosines, SENTENCES, strict=True)]
    )
    yield from _heading("2. What Headrace found out about it", "From the traced graph and a probe, not from its name.")
    yield from (*paragraph(summary(model.program)), "", *attention_table(model.program))
    _write(page, model.explain("html"))
    yield from ("", f"The whole story, with a picture of every mask: {page}")


def _entities(target: str) -> Iterator[str]:
    yield from _heading("3. Names in a sentence", f"{MODELS['rampart_ner'].about}.")
    weights = folder("rampart_ner")
    yield from ("Compiling it ...", "")
    model = headrace.compile(weights, target=target)
    (found,) = model.token_classify([NAMES], aggregation="first")
    yield from (f"  {NAMES}", "")
    yield from aligned([(NAMES[e.start : e.end], e.label, f"{e.score:.3f}", f"{e.start}-{e.end}") for e in found])


def _refusal(decoder: Path, target: str) -> Iterator[str]:
    yield from _heading("4. A refusal that says what to do", "A tiny random decoder whose head labels tokens.")
    try:
        headrace.compile(decoder, task="token_classify", target=target)
    except TaskNotEnabledError as error:
        yield from (f"  {line}" for line in paragraph(one_line(str(error))))
    yield from ("", 'So, compiled with prefill="single_pass" ...')
    model = headrace.compile(decoder, target=target, prefill="single_pass")
    rows = model(TOKENS)
    sizes = " and ".join(str(len(row)) for row in rows)
    yield f"it serves {', '.join(model.tasks)}: for requests of {sizes} tokens, {rows[0].shape[1]} logits a token, e.g."
    yield from (f"  {np.array2string(row, precision=3, floatmode='fixed')}" for row in rows[1])


def _heading(title: str, about: str) -> Iterator[str]:
    yield from ("", title, "-" * len(title), *paragraph(about))


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page} cannot be written: {error.strerror}. Name another place with --out.") from error
