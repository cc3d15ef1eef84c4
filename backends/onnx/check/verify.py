"""Hold a model file against the program that it was made of. A file that fails becomes no artifact."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import feed, graphs, sample
from headrace.backends.onnx import names
from headrace.backends.onnx.check.cases import (
    Case,
    Distance,
    answered,
    by_role,
    distance,
    feeds,
    make_cases,
    real_rows,
    recorded,
    types_of,
)
from headrace.backends.onnx.check.past import grown
from headrace.backends.onnx.check.report import BOUNDS, Bound, Check, Report
from headrace.backends.onnx.check.written import Perplexity, perplexity, written
from headrace.backends.onnx.profiles import Profile
from headrace.backends.onnx.session import HOST, Session
from headrace.ir import CacheKind, Layout, Program, Role
from headrace.utils import madvise

# ONNX's own evaluator is slow: one batch, of models that it can hold in a moment.
REFERENCE_ROWS, REFERENCE_BELOW = 3, 1 << 29
COUNTED = "left out: the model's own code counts positions from the left, padding included, so pad on the right"
# Each batch, and for each output the right answer to each of its sequences.
Oracle = list[tuple[Case, list[list[NDArray[Any]]]]]


def verify(path: Path, program: Program, profile: Profile, dtype: str, plain: Path | None = None) -> Report:
    """Check the file's form, then its answers against the program's on each sequence alone, in float32.

    The program was held against the eager model when it was analysed; here each of its operators runs by definition.

    Args:
        plain: the file in float32 that one in fewer bits was made of: a model that generates is asked what it makes of
            texts that this one writes, since random tokens tell little of what rounding costs.
    """
    bound, checks = BOUNDS[dtype], [*form(path)]
    if not checks[-1].passed:
        return Report(profile.name, dtype, bound, tuple(checks), ())
    if program.form.layout is Layout.CACHED:
        grown = [*_grown(path, program, bound, plain)]
        checks += [check for check, _ in grown]
        return Report(profile.name, dtype, bound, tuple(checks), tuple(case for _, case in grown))
    # One model at a time: with the weights in a file of their own, the session takes no copy of them either.
    apart, oracle = data_of(path).is_file(), _oracle(program, make_cases(program, profile.lengths))
    if not _takes_left(program, oracle):
        oracle = [(case, wanted) for case, wanted in oracle if not case.left]
        checks.append(Check("padding on the left", True, COUNTED))
    defined = [*_by_definition(path, program, oracle, bound)] if path_size(path) < REFERENCE_BELOW else []
    if apart:
        madvise.give_back(graphs.weights_of(program.graph).values())
    session, cases = Session(path, (HOST,), mapped=apart), []
    for case, wanted in oracle:
        worst = Distance(0.0, 1.0)
        for got, rows in zip(answered(case, session, program.signature.outputs), wanted, strict=True):
            worst = worst.joined(distance(got, rows))
        checks.append(Check(f"onnxruntime, {case}", bound.holds(worst), bound.words(worst)))
        kept = tuple(
            (names.OUTPUTS[output.kind], tuple(recorded(row) for row in rows))
            for output, rows in zip(program.signature.outputs, wanted, strict=True)
        )
        cases.append(replace(case, answers=kept))
    return Report(profile.name, dtype, bound, (*checks, *defined), tuple(cases))


def _grown(path: Path, program: Program, bound: Bound, plain: Path | None) -> Iterator[tuple[Check, Case]]:
    """A batch at a time: prompts that grow, against the program on each text alone and whole."""
    session, pasts = Session(path, (HOST,), mapped=data_of(path).is_file()), names.pasts(program)
    whole = functools.cache(functools.partial(_whole, program))
    cases = [*make_cases(program, lengths_only=False)]
    own = None if plain is None else written(program, Session(plain, (HOST,), mapped=True), pasts)
    for case in cases if own is None else [own, *cases]:
        if program.nodes.recurrent and not case.left and len({*map(len, case.ids)}) > 1:
            continue  # a state has no place for padding between a prompt and what follows
        wanted, worst = [whole(own) for own in case.ids], Distance(0.0, 1.0)
        found = grown(case, session, pasts)
        for rows, right in zip(found, wanted, strict=True):
            if rows:
                worst = worst.joined(distance([np.stack([*rows.values()])], [right[[*rows]]]))
        kept = tuple(recorded(right[max(rows)]) if rows else () for rows, right in zip(found, wanted, strict=True))
        check = Check(f"onnxruntime, {case}, in pieces", bound.holds(worst), bound.words(worst))
        if case is own:
            check = _foretold(check, perplexity(case, found, wanted), bound)
        yield check, replace(case, answers=((names.OUTPUTS[program.signature.outputs[0].kind], kept),))


def _foretold(check: Check, found: Perplexity, bound: Bound) -> Check:
    """The check of texts that the model wrote, with what it makes of their next tokens."""
    passed = check.passed and found.ratio <= bound.perplexity
    name = check.name.replace("tokens", "tokens that it wrote")
    return Check(name, passed, f"{check.found}; {found} ({bound.perplexity:g} times allowed)")


@torch.no_grad()
def _whole(program: Program, own: tuple[int, ...]) -> NDArray[Any]:
    """The cached program's logits [tokens, V] of a text that is run at once; a second, of one token, lies beside it."""
    size = program.form.block
    most = -(-len(own) // size)
    tables = [list(range(most)), [most]]
    texts = [np.array(own), np.array(own[:1])]
    given = feed.cached(
        program,
        [
            feed.Piece(ids, 0, [table] * len(program.form.groups), row, len(ids))
            for row, (ids, table) in enumerate(zip(texts, tables, strict=True))
        ],
    )
    counts = {CacheKind.PAGED: (most + 1, size), CacheKind.ROW: (len(texts),)}
    caches = {
        one.name: torch.zeros((*counts[one.kind], *one.sizes), dtype=getattr(torch, one.dtype))
        for one in program.form.caches
    }
    (logits,), _ = graphs.run(program.graph, sample.tensors(program, given) | caches)
    return np.asarray(logits[0, : len(own)].float())


def form(path: Path) -> Iterator[Check]:
    """Whether the file is one of ONNX, by its own checker."""
    import onnx

    try:
        # Full: with shape inference, strict and with types. By path, since larger models fit in no one message.
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        yield Check("onnx.checker with strict shapes", False, str(error).strip().splitlines()[0])
        return
    yield Check("onnx.checker with strict shapes", True, "valid")


def data_of(path: Path) -> Path:
    """The file that holds a model file's weights, where they have one of their own."""
    return path.with_name(f"{path.name}_data")


def path_size(path: Path) -> int:
    """Bytes of the model file and its data."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def _by_definition(path: Path, program: Program, oracle: Oracle, bound: Bound) -> Iterator[Check]:
    """ONNX's own evaluator, operator by operator in numpy: it overflows a half where onnxruntime's CPU hides that."""
    from onnx.reference import ReferenceEvaluator

    from headrace.backends.onnx.check.evaluated import RMSNormalization

    load = functools.cache(lambda: ReferenceEvaluator(str(path), new_ops=[RMSNormalization]))
    outputs = [names.OUTPUTS[output.kind] for output in program.signature.outputs]
    for case, wanted in oracle:
        if len(case.ids) != REFERENCE_ROWS:
            continue
        name = f"onnx's reference evaluator, {case}"
        try:
            with np.errstate(all="ignore"):
                found = load().run(outputs, feeds(case, load().input_names))
        except Exception as error:  # it lacks operators, and refuses forms of others that the standard has
            yield Check(name, True, f"left out, it stops at: {str(error).strip().splitlines()[:1]}")
            continue
        worst = Distance(0.0, 1.0)
        for output, values, rows in zip(program.signature.outputs, found, wanted, strict=True):
            worst = worst.joined(distance(real_rows(case, values, output), rows))
        yield Check(name, bound.holds(worst), bound.words(worst))


def _oracle(program: Program, cases: Iterable[Case]) -> Oracle:
    """Each batch with its answers. Those of one padded on either side are the same: no sequence sees its padding."""
    answers = functools.cache(functools.partial(_alone, program))
    return [(case, answers(replace(case, left=False))) for case in cases]


def _takes_left(program: Program, oracle: Oracle) -> bool:
    """Whether the program itself answers alike on padding on the left: it may count positions from there."""
    left = next(((case, wanted) for case, wanted in oracle if case.left), None)
    if left is None or program.signature.has(Role.POSITIONS):
        return True
    case, wanted = left
    outputs, _ = graphs.run(program.graph, sample.tensors(program, by_role(case)))
    return all(
        BOUNDS["float32"].holds(distance(real_rows(case, np.asarray(found.float()), output), rows))
        for output, found, rows in zip(program.signature.outputs, outputs, wanted, strict=True)
    )


@torch.no_grad()
def _alone(program: Program, case: Case) -> list[list[NDArray[Any]]]:
    """For each output, the program's answer to each sequence alone and unpadded."""
    rows = []
    for row, own in enumerate(case.ids):
        alone = feed.padded([own], [types_of(case, row)], offset=program.facts.positions.offset)
        outputs, _ = graphs.run(program.graph, sample.tensors(program, alone))
        rows.append([np.asarray(output[0].float()) for output in outputs])
    return [list(column) for column in zip(*rows, strict=True)]
