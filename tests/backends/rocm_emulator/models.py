"""Whole tiny models of two layers or three, as the ROCm target compiles them, executed, against their graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headrace import graphs, sample
from headrace.ir import Layout, Program, Task
from tests.backends.rocm_emulator import program as emulated
from tests.backends.rocm_emulator.program import Executed
from tests.tiny import build, checkpoint

LENGTHS = (5, 17, 3, 1, 40)  # of a packed row's sequences
PADDED, TARGETS = (19, 5, 1), (4, 2, 1)  # of a padded batch's, and of what a decoder is given


@dataclass(frozen=True)
class Model:
    """One to try."""

    name: str
    dtype: str = "float32"
    head: str = "AutoModel"
    task: Task = Task.EMBED

    def __str__(self) -> str:
        """For people and files."""
        return f"{self.name}-{self.task}-{self.dtype}"


# As packed rows. Padded programs (an encoder with its decoder, recurrences) are not among them yet: of LFM2's the
# launcher's arguments and the code object's disagree, and nothing says so of the others.
MODELS = (
    Model("bert"),
    Model("bert", "bfloat16"),
    Model("modernbert", "bfloat16"),
    Model("qwen3"),
    Model("t5"),
)


@dataclass(frozen=True)
class Outcome:
    """What an execution gave.

    Attributes:
        left: what torch's own products on the CPU stood in for, by name.
        largest: the largest distance of an output from float64's.
        own: the same of the graph's own operators, in its dtype on the CPU.
        scale: the largest output.
    """

    layout: str
    kernels: list[Executed]
    left: list[str]
    largest: float
    own: float
    scale: float

    @property
    def passes(self) -> bool:
        """Within what arithmetic in the dtype costs the graph itself, or a rounding of its largest output or two."""
        return self.largest <= 4 * self.own + 1e-6 * self.scale


def program(model: Model) -> Program:
    """As the target is given it."""
    from headrace.frontend.trace import trace
    from headrace.lowering.pipeline import analyse, prepare

    traced = trace(checkpoint(build(model.name, model.head).to(getattr(torch, model.dtype))))
    return prepare(analyse(traced.program, traced.behaviour), model.task, Layout.PACKED)


def executed(model: Model, folder: Path, most: int = 1) -> Outcome:
    """Trace it here, and compile and execute it in a process that believes in the device.

    Args:
        most: configurations of each of Inductor's kernels.
    """
    made = program(model)
    given = inputs(made)
    (own,), _ = graphs.run(made.graph, given)
    exact = _in_float64(model, given)
    emulated.write(folder, str(model), made, given)
    (found, *_), kernels, left = emulated.execute(folder, str(model), most)
    return Outcome(
        str(made.form.layout), kernels, left, _distance(found, exact), _distance(own, exact), float(exact.abs().max())
    )


def inputs(made: Program) -> dict[str, Any]:
    """Sequences of mixed lengths, one of one token among them."""
    if made.form.layout is Layout.PACKED:
        return sample.row(made, LENGTHS)
    real, target = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None] for lengths in (PADDED, TARGETS))
    return sample.batch(made, real, target)


def _in_float64(model: Model, given: dict[str, Any]) -> torch.Tensor:
    """The graph's operators in float64, the model's weights those of the dtype."""
    from headrace.frontend.trace import trace
    from headrace.lowering.pipeline import analyse, prepare

    wide = build(model.name, model.head).to(getattr(torch, model.dtype)).double()
    traced = trace(checkpoint(wide))
    made = prepare(analyse(traced.program, traced.behaviour), model.task, Layout.PACKED)
    (exact,), _ = graphs.run(made.graph, given)
    return exact.double()


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max())
