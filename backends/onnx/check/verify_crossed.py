"""An encoder's and a decoder's files held against the program of both: a first step, then a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import graphs, sample
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import Case, distance, recorded
from headrace.backends.onnx.check.crossed import LOGITS, Given, stepped
from headrace.backends.onnx.check.report import BOUNDS, Check, Report
from headrace.backends.onnx.check.verify import data_of, form
from headrace.backends.onnx.profiles import Profile
from headrace.backends.onnx.session import HOST, Session
from headrace.ir import OutputKind, Program, Role

# Tokens of the texts of a batch, and of the targets beside them.
BATCHES, TARGET = ((9,), (7, 3, 11)), 6


def verify_crossed(encoder: Path, decoder: Path, program: Program, cached: Program, profile: Profile) -> Report:
    """Check the form of both files, then the logits of targets beside texts, each against the program on that alone.

    Args:
        program: of the whole model.
        cached: of its decoder.
    """
    bound, checks, cases = BOUNDS["float32"], [*form(encoder), *form(decoder)], list[Case]()
    if not all(check.passed for check in checks):
        return Report(profile.name, "float32", bound, tuple(checks), ())
    sessions = [Session(path, (HOST,), mapped=data_of(path).is_file()) for path in (encoder, decoder)]
    for lengths in BATCHES:
        texts = [_text(program, length, seed) for seed, length in enumerate(lengths)]
        case, given = _case(program, texts), _batch(program, texts)
        target = given.pop(str(program.signature.name(Role.TARGET_IDS)))
        found, wanted = stepped(sessions, given, target, names.pasts(cached)), [*map(_alone(program), texts)]
        # The file may return the last token's alone of the first step.
        worst = distance([*found], [rows[-found.shape[1] :] for rows in wanted])
        checks.append(Check(f"onnxruntime, {case or 'arrays'}, in steps", bound.holds(worst), bound.words(worst)))
        if case is not None:
            cases.append(replace(case, answers=((LOGITS, tuple(recorded(rows) for rows in wanted)),)))
    return Report(profile.name, "float32", bound, tuple(checks), tuple(cases))


def _case(program: Program, texts: Sequence[Given]) -> Case | None:
    """A batch of texts that any machine can run again; None of arrays, which are too large to be kept."""
    ids, target = (program.signature.name(role) for role in (Role.IDS, Role.TARGET_IDS))
    if ids is None:
        return None
    rows = (tuple(tuple(text[str(name)][0].tolist()) for text in texts) for name in (ids, target))
    return Case(next(rows), left=False, targets=next(rows))


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


def _batch(program: Program, texts: Sequence[Given]) -> Given:
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
