"""The float64 reference: a graph interpreted with every float in float64, whatever dtype it was traced in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace import graphs
from headrace.ir import Program


def exact_output(program: Program, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """The program's one output in float64.

    Args:
        weights: in place of the program's own, by name: what another precision rounds them to.
    """
    (output,), _ = graphs.run(program.graph, inputs, widened=torch.float64, weights=weights)
    return output
