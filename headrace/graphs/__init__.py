"""Exported graphs: reading one, running one eagerly and rewriting one."""

from headrace.graphs.derived import Derived
from headrace.graphs.interpreter import HALVES, ancestors, bindings, evaluate, flat_module, run
from headrace.graphs.rewriter import (
    Edit,
    drop_mutations,
    keep_outputs,
    replace_output,
    rewrite,
    sparing,
    with_inputs,
    with_weights,
)
from headrace.graphs.signature import bound_of, inputs_of, outputs_of, weights_of
from headrace.graphs.storage import save
from headrace.graphs.surgery import SIZE, call, counts_data, drop_data_assertions, lift_weights, replace

__all__ = [
    "HALVES",
    "SIZE",
    "Derived",
    "Edit",
    "ancestors",
    "bindings",
    "bound_of",
    "call",
    "counts_data",
    "drop_data_assertions",
    "drop_mutations",
    "evaluate",
    "flat_module",
    "inputs_of",
    "keep_outputs",
    "lift_weights",
    "outputs_of",
    "replace",
    "replace_output",
    "rewrite",
    "run",
    "save",
    "sparing",
    "weights_of",
    "with_inputs",
    "with_weights",
]
