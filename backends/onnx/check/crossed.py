"""An encoder's and a decoder's files held against the program of both: a first step, then a token at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import graphs, sample
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import Distance, distance
from headrace.backends.onnx.check.report import BOUNDS, Check, Report
from headrace.backends.onnx.check.verify import data_of, form
from headrace.backends.onnx.profiles import Profile
from headrace.backends.onnx.session import HOST, Session
from headrace.ir import OutputKind, Program, Role

# Tokens of the texts of a batch and of the targets, of which so many are run in the first step.
BATCHES, TARGET, FIRST = ((9,), (7, 3, 11)), 6, 2
LOGITS, ROWS = names.OUTPUTS[OutputKind.VOCABULARY_LOGITS], names.OUTPUTS[OutputKind.HIDDEN]
Given = dict[str, NDArray[Any]]


def verify_crossed(encoder: Path, decoder: Path, program: Program, cached: Program, profile: Profile) -> Report:
    """Check the form of both files, then the logits of targets beside texts, each against the program on that alone.

    Args:
        program: of the whole model.
        cached: of its decoder.
    """
    bound, checks = BOUNDS["float32"], [*form(encoder), *form(decoder)]
    if all(check.passed for check in checks):
        sessions = [Session(path, (HOST,), mapped=data_of(path).is_file()) for path in (encoder, decoder)]
        for lengths in BATCHES:
            texts = [_text(program, length, seed) for seed, length in enumerate(lengths)]
            worst = Distance(0.0, 1.0)
            for found, wanted in zip(
                _stepped(sessions, texts, program, cached), map(_alone(program), texts), strict=True
            ):
                worst = worst.joined(distance([found], [wanted[-found.shape[0] :]]))
            said = " + ".join(map(str, lengths))
            name = f"onnxruntime, {said} tokens and targets of {TARGET}, in steps"
            checks.append(Check(name, bound.holds(worst), bound.words(worst)))
    return Report(profile.name, "float32", bound, tuple(checks), ())


def _text(program: Program, length: int, seed: int) -> Given:
    """A text, or an array, and a target beside it, as the program is given them alone."""
    limits = [
        one.length for one in (program.facts.limits, program.facts.target_limits) if one is not None and one.length
    ]
    real = torch.ones((1, min([length, *limits])), dtype=torch.bool)
    given = sample.batch(program, real, torch.ones((1, min([TARGET, *limits])), dtype=torch.bool), seed)
    return {name: value.numpy() for name, value in given.items()}


def _alone(program: Program) -> Any:
    place = next(
        place for place, one in enumerate(program.signature.outputs) if one.kind is OutputKind.VOCABULARY_LOGITS
    )

    def logits(given: Given) -> NDArray[Any]:
        outputs, _ = graphs.run(program.graph, {name: torch.from_numpy(value) for name, value in given.items()})
        return np.asarray(outputs[place][0].float())

    return logits


def _stepped(
    sessions: list[Session], texts: list[Given], program: Program, cached: Program
) -> Iterator[NDArray[Any]]:  # fmt: skip
    """The logits of each target's tokens, as a caller of the files makes them."""
    encoder, decoder = sessions
    whole = _batch(program, texts)
    target = whole.pop(str(program.signature.name(Role.TARGET_IDS)))
    rows = encoder.run({name: whole[name] for name in encoder.inputs}, ROWS)
    pasts = names.pasts(cached)
    held = {one.before: np.zeros(one.shape(0, len(texts)), np.float32) for one in pasts.values()}
    known = {names.ENCODED_ROWS: rows}
    if (padding := program.signature.name(Role.PADDING)) is not None:
        known[names.ENCODED_PADDING] = whole[padding]
    found, bounds = list[NDArray[Any]](), [0, FIRST, *range(FIRST + 1, target.shape[1] + 1)]
    for begin, end in itertools.pairwise(bounds):
        given = known | held | {names.IDS: target[:, begin:end], names.CACHED: np.array([begin > 0])}
        logits, *presents = decoder.run_for(given, [LOGITS, *(_present(name) for name in held)])
        held = dict(zip(held, presents, strict=True))
        found.append(logits)
    yield from np.concatenate(found, 1)


def _present(past: str) -> str:
    return past.replace("past_key_values", "present")


def _batch(program: Program, texts: list[Given]) -> Given:
    """Texts of different lengths in one batch, padded on the right; arrays have one size."""
    made = Given()
    for one in program.signature.inputs:
        if one.name not in texts[0]:
            continue
        arrays = [text[one.name] for text in texts]
        width = max(array.shape[1] for array in arrays)
        if one.role is Role.ARRAY:
            made[one.name] = np.concatenate(arrays)
        else:
            made[one.name] = np.concatenate([np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in arrays])
    return made
