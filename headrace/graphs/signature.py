"""What an exported graph takes, returns and holds."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind


def inputs_of(exported: ExportedProgram) -> tuple[str, ...]:
    """The names of the inputs that a caller gives, in order."""
    return tuple(exported.graph_signature.user_inputs)


def outputs_of(exported: ExportedProgram) -> tuple[fx.Node, ...]:
    """The nodes that the graph returns, in order."""
    returned: Any = exported.graph.output_node().args[0]
    return tuple(returned)


def weights_of(exported: ExportedProgram) -> dict[str, Tensor]:
    """The parameters by the name of their placeholder."""
    specs = exported.graph_signature.input_specs
    return {s.arg.name: exported.state_dict[str(s.target)] for s in specs if s.kind is InputKind.PARAMETER}


def bound_of(exported: ExportedProgram) -> int | None:
    """The longest sequence that the graph may be given, None without a bound: the second dimension of its inputs."""
    given = set(inputs_of(exported))
    size = next(n.meta["val"].shape[1] for n in exported.graph.nodes if n.name in given)
    upper = exported.range_constraints[size.node.expr].upper if isinstance(size, torch.SymInt) else size
    return int(upper) if getattr(upper, "is_finite", True) and upper < sys.maxsize - 1 else None
