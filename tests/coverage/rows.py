"""One row of the coverage page: what Headrace does with one architecture under one head, and how right it is."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace import graphs
from headrace.errors import HeadraceError
from headrace.frontend.probe.behaviour import Behaviour
from headrace.frontend.trace import trace
from headrace.ir import AttentionType, Layout, PaddingRule, PositionSource, Program, Task, Verdict
from headrace.lowering.forms.choose import ChooseLayout
from headrace.lowering.pipeline import analyse, prepare
from tests.coverage.generates import generates
from tests.coverage.requests import Request, alone, answer, batch, request
from tests.tiny import checkpoint, randomise

SHAPES = ((1, 1), (1, 7), (3, 11), (2, 64))
# Contract D1: a difference allowed to anybody, and the multiple of the eager model's own distance from float64.
LEAST, OF_OWN = 1e-5, 4.0
PROVEN = frozenset({Verdict.PROVEN, Verdict.PROVEN_SHRUNK})


@dataclass
class Row:
    """One line of docs/coverage.json.

    Attributes:
        types: attention types in call order, with the window where there is one.
        recovered: how many attentions came of the model's own code rather than of transformers' interface.
        verified: every attention was proven by the probe, or there is none.
        refused: the reason in Headrace's words, None where the model is served.
        worst_difference: from the eager float32 model on each text alone, over the shapes and both padding sides.
        allowed: the largest difference that contract D1 allows where the worst one was met.
        moved: where that is passed, by how much the eager model's own answers move when its weights change in the last
            bit: what float32 leaves open in them, of which its distance from float64 is one draw.
        packed, cached: whether batches run without padding, and whether keys and values can be kept; else the reason.
        generates: whether it makes the tokens that transformers' `generate` makes, else the reason; None where no text
            is asked of it.
        seconds: to trace, type and prove.
    """

    architecture: str
    head: str
    types: list[str] = field(default_factory=list)
    recovered: int = 0
    verified: bool = False
    refused: str | None = None
    worst_difference: float | None = None
    allowed: float | None = None
    moved: float | None = None
    packed: bool | str | None = None
    cached: bool | str | None = None
    generates: bool | str | None = None
    route: str | None = None
    seconds: float = 0.0
    broken: str | None = None

    @property
    def within(self) -> bool:
        """Served, proven and within contract D1."""
        return (
            self.refused is None
            and self.broken is None
            and self.verified
            and self.worst_difference is not None
            and self.allowed is not None
            and self.worst_difference <= self.allowed
        )

    def as_json(self) -> dict[str, Any]:
        """The row as docs/coverage.json holds it."""
        return asdict(self) | {"within": self.within}


def measure(row: Row, model: Any) -> Row:
    """Fill in the row of a built model; whatever goes wrong is a fact about it, not an error."""
    begun = time.perf_counter()
    try:
        traced = trace(checkpoint(randomise(model).eval(), row.architecture))
        program = analyse(traced.program, traced.behaviour)
        row.seconds = round(time.perf_counter() - begun, 1)
        _describe(row, program)
        row.worst_difference, row.allowed = _worst(program, traced.behaviour)
        if row.worst_difference > row.allowed:
            row.moved = _moved(program, traced.behaviour)
        row.packed = _packed(program)
        row.cached = _cached(program)
        row.generates = generates(program, model)
    except HeadraceError as error:
        row.refused = f"{type(error).__name__}: {error}"
    except Exception as error:
        row.broken = f"{type(error).__name__}: {str(error)[:300]}"
    row.seconds = row.seconds or round(time.perf_counter() - begun, 1)
    return row


def _describe(row: Row, program: Program) -> None:
    assert program.decision.route is not None
    row.types = [
        f"{spec.type} {spec.window}" if spec.window.bounded else str(spec.type) for spec in program.nodes.attention
    ]
    row.types += [node.operator for node in program.nodes.recurrent]
    row.recovered = sum(spec.recovered for spec in program.nodes.attention)
    row.verified = all(spec.verdict in PROVEN for spec in program.nodes.attention)
    row.route = program.decision.route.name


def _packed(program: Program) -> bool | str:
    served = [
        decision.task
        for decision in program.decision.tasks
        if decision.supported and decision.task is not Task.GENERATE
    ]
    task = next(iter(served), None)
    if task is None:
        return "no task is served"
    packed = ChooseLayout(Layout.PACKED)(prepare(program, task))
    return packed.form.layout is Layout.PACKED or packed.form.layout_why


def _cached(program: Program) -> bool | str:
    """What a cache of keys and values asks of a program; the lowering itself is not part of this version."""
    other = [spec.node for spec in program.nodes.attention if spec.type is not AttentionType.DECODER]
    if other:
        return f"{other[0]} sees later tokens"
    if program.nodes.recurrent:
        return f"{program.nodes.recurrent[0].node} keeps a state of its own"
    return True if program.nodes.attention else "no attention"


@torch.no_grad()
def _worst(program: Program, behaviour: Behaviour) -> tuple[float, float]:
    """The difference nearest to, or furthest past, what contract D1 allows, and what it allows there."""
    double = copy.deepcopy(behaviour)
    double._served.double()
    found = [(0.0, LEAST)]
    for size, length in SHAPES:
        if length > (program.facts.limits.length or length):
            continue
        asked = [request(program, max(1, length - 4 * row), row) for row in range(size)]
        wanted = [behaviour.outputs(alone(program, one)) for one in asked]
        exact = [_exact(double, alone(program, one)) or theirs for one, theirs in zip(asked, wanted, strict=True)]
        for left in (False, True):
            for mine, theirs, best in zip(_answers(program, asked, left), wanted, exact, strict=True):
                found += [_compared(*three) for three in zip(mine, theirs, best, strict=True)]
    return max(found, key=lambda pair: pair[0] / pair[1])


@torch.no_grad()
def _moved(program: Program, behaviour: Behaviour) -> float:
    """The furthest that an eager answer at the longest shape moves, over four changes of every weight by half a bit."""
    _, length = SHAPES[-1]
    inputs = alone(program, request(program, length, 0))
    wanted, found = behaviour.outputs(inputs), [0.0]
    for seed in range(4):
        torch.manual_seed(seed)
        other = copy.deepcopy(behaviour)
        for weight in other._served.parameters():
            weight.mul_(1 + (torch.rand_like(weight) - 0.5) * torch.finfo(weight.dtype).eps)
        answers = zip(other.outputs(inputs), wanted, strict=True)
        found += [float((mine - theirs).abs().max()) for mine, theirs in answers]
    return max(found)


def _counts_columns(program: Program) -> bool:
    """Whether the graph counts a position, runs a state or makes a decoder's target from the first column on."""
    positions = program.facts.positions.source is PositionSource.GRAPH and program.facts.positions.table is not None
    cross = any(spec.type is AttentionType.ENCODER_DECODER for spec in program.nodes.attention)
    return (
        positions
        or bool(program.nodes.recurrent)
        or (cross and "decoder_input_ids" not in program.signature.input_names)
    )


def _exact(double: Behaviour, inputs: dict[str, Tensor]) -> tuple[Tensor, ...] | None:
    """The answers in float64; None of a model whose own code knows float32 only, which allows it no more than LEAST."""
    try:
        return double.outputs(inputs)
    except RuntimeError:
        return None


def _compared(mine: Tensor, theirs: Tensor, best: Tensor) -> tuple[float, float]:
    own = float((theirs.double() - best.double()).abs().max())
    worst = float((mine - theirs).abs().max()) if mine.shape == theirs.shape else torch.inf
    return (worst if worst == worst else torch.inf), max(LEAST, OF_OWN * own)


def _answers(program: Program, asked: list[Request], left: bool) -> list[tuple[Tensor, ...]]:
    """Each request's outputs, run as the engine runs the program: in one padded batch, or alone where that is inexact.

    The engine pads on the right; the left is asked for where nothing in the graph counts from the first column.
    """
    if program.decision.padding is not PaddingRule.EXACT or (left and _counts_columns(program)):
        return [graphs.run(program.graph, alone(program, one))[0] for one in asked]
    values, _ = graphs.run(program.graph, batch(program, asked, left))
    return [
        tuple(
            answer(output, value, row, one, left)
            for output, value in zip(program.signature.outputs, values, strict=True)
        )
        for row, one in enumerate(asked)
    ]
