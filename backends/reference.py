"""The slow, clear target: interprets the IR node by node. It says what the IR means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace import graphs
from headrace.backends.inductor.tensors import OnTensors
from headrace.ir import CacheDtype, Layout, Program
from headrace.ops import attention, cached, linear_recurrence, lstm, recurrent, stateful  # noqa: F401 - a graph that is read needs its operators
from headrace.utils.compiler_lock import in_turn


class Interpreted:
    """A program run by each operator's definition in `headrace.ops`, nothing fused or rewritten."""

    def __init__(self, program: Program) -> None:
        """Keep the graph."""
        self.calls = 0
        self._exported = program.graph

    @in_turn  # the wrapper that torch puts around an operator of ours notes for a tracer that it is there
    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Interpret the graph on `inputs`: its output, or a tuple of several."""
        self.calls += 1
        outputs = graphs.run(self._exported, inputs)[0]
        return outputs[0] if len(outputs) == 1 else outputs

    def save(self, path: Path) -> None:
        """Write the exported program, weights included."""
        graphs.save(self._exported, path)


class Reference(OnTensors):
    """Runs anywhere that torch does, in any dtype."""

    name = "reference"
    suffix = ".pt2"
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    step_tokens = 1024
    cache_dtypes = (CacheDtype.FP8,)

    def __init__(self, layout: Layout = Layout.PADDED) -> None:
        """Take programs of that layout; packed ones mean what the padded ones do, sequence by sequence."""
        self.layout = layout

    def check(self, compiles: bool) -> None:
        """Nothing is needed."""

    def compile(self, program: Program) -> Interpreted:
        """There is nothing to compile."""
        return Interpreted(program)

    @in_turn
    def load(self, path: Path, program: Program) -> Interpreted:
        """Read the exported program back."""
        return Interpreted(program.with_(exported=torch.export.load(path)))
