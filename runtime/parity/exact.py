"""The float64 reference: a graph interpreted with every float in float64, whatever dtype it was traced in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from headrace import graphs
from headrace.ir import Program

SHORT = frozenset({torch.float32, torch.bfloat16, torch.float16})


class _Widened(fx.Interpreter):
    """Casts to shorter floats are casts to float64: a model's own upcasts to float32 lose nothing either."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(target, *pytree.tree_map(_wide_dtype, (args, kwargs)))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(super().get_attr(target, args, kwargs))


@torch.no_grad()
def exact_output(program: Program, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """The program's one output in float64.

    Args:
        weights: in place of the program's own, by name: what another precision rounds them to.
    """
    exported = program.graph
    specs = exported.graph_signature.input_specs
    held = graphs.bindings(exported, inputs)
    other = weights or {}
    given = [_wide(other.get(str(spec.target), value)) for spec, value in zip(specs, held, strict=True)]
    output: Tensor = _Widened(exported.graph_module).run(*given)[0]
    return output


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in SHORT else value


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in SHORT else value
