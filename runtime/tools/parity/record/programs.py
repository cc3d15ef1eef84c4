"""The programs that recording and checking run: one task's, as it is deployed, and the same with its nodes tapped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.errors import ParityError, TraceError
from headrace.ir import Layout, Program, Task
from headrace.ir.passes import run_passes
from headrace.ir.printer import attention_text, recurrent_text
from headrace.lowering.optimise.observe import Tap
from headrace.lowering.pipeline import prepare
from headrace.runtime import api
from headrace.runtime.tools.parity.bundle import Node


@dataclass(frozen=True)
class Tracing:
    """How a model is traced, whatever the dtype."""

    source: str | Path
    prefill: str | None = None
    pooling: tuple[str, ...] | None = None
    trust_remote_code: bool = False

    def __call__(self, dtype: str) -> api.Traced:
        """The model traced in a dtype."""
        return api.trace(
            self.source, dtype=dtype, prefill=self.prefill, pooling=self.pooling,
            trust_remote_code=self.trust_remote_code, progress=False,
        )  # fmt: skip


def insert_taps(analysed: Program, task: Task, layout: Layout, nodes: Sequence[str] | None = None) -> Program:
    """The program of a task that returns what its nodes computed; of every attention and recurrence, if None.

    Raises:
        ParityError: they have no row a token.
    """
    try:
        return run_passes(prepare(analysed, task, layout), (Tap(None if nodes is None else tuple(nodes)),))
    except TraceError as error:
        raise ParityError(f"The model cannot be compared node by node: {error}") from error


def described(program: Program) -> list[Node]:
    """The tapped nodes of a padded program as people know them."""
    attending = {
        spec.node: (spec.call_order, attention_text(spec), spec.provenance) for spec in program.nodes.attention
    }
    recurring = {
        spec.node: (spec.call_order, recurrent_text(spec), spec.provenance) for spec in program.nodes.recurrent
    }
    found = []
    for tap in program.nodes.taps:
        kind = "attention" if tap.node in attending else "recurrence"
        order, says, place = (attending | recurring)[tap.node]
        found.append(Node(f"{kind} {order}", says.split(": ", 1)[1], place, tap.width))
    return found


def weights_digest(weights: Iterable[Tensor]) -> str:
    """One digest of a model's parameters, whatever they are called, in whichever order, and however often shared."""
    each = {hashlib.sha256(_bytes(weight)).hexdigest() for weight in weights}
    return hashlib.sha256("".join(sorted(each)).encode()).hexdigest()


def _bytes(weight: Tensor) -> bytes:
    return weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def round_weights(program: Program) -> Mapping[str, Tensor]:
    """The parameters as the program's dtype rounds them, by name."""
    parameters = frozenset(program.graph.graph_signature.parameters)
    return {name: value for name, value in program.graph.state_dict.items() if name in parameters}
