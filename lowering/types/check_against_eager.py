"""Hold the traced graph against the eager model before anything is built on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace import graphs, sample
from headrace.errors import TraceError, non_finite
from headrace.ir import Program

# Relative to the largest value of an output; what the trace has lost shows as 1e-3 and more in float32.
BOUNDS = {"float32": 2e-4, "float64": 2e-4}
HALF_BOUND = 0.1
LENGTH = 5


class Eager(Protocol):
    """The original module, run eagerly."""

    def outputs(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Its answers in the order of the program's outputs."""
        ...


@dataclass(frozen=True)
class Agree:
    """The graph answers as the eager model on one unpadded text of another length than the trace's."""

    eager: Eager
    name: str = "agree"

    def __call__(self, program: Program) -> Program:
        """Run both and compare every output.

        Raises:
            TraceError: they differ.
            NonFiniteError: the model itself answers with no numbers.
        """
        length = min(LENGTH, program.facts.limits.length or LENGTH)
        inputs = sample.one(program, length)
        # By the program's dtype: some models end in float32 whatever they run in.
        bound = BOUNDS.get(program.dtype, HALF_BOUND)
        got, _ = graphs.run(program.graph, inputs)
        for output, one, other in zip(program.signature.outputs, got, self.eager.outputs(inputs), strict=True):
            if not torch.isfinite(other).all():
                raise non_finite("The original model's answer to plain tokens", program.dtype)
            worst = float((one - other).abs().max() / other.abs().max().clamp(min=1e-6))
            if not worst <= bound:
                raise TraceError(
                    f"The traced graph and the eager model differ by {worst:.1e} in {output.name} (relative; {bound:g} "
                    "is allowed). Something that the trace leaves out changes the model's answer; it is not served."
                )
        return program
