"""Measure whether padding is exact for a program: whether a padded sequence answers as it does alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from headrace import graphs, sample
from headrace.compat.torch import operator_name
from headrace.errors import TraceError
from headrace.ir import PER_TOKEN_OUTPUTS, PaddingRule, Program

LENGTH, PADDED = 5, 9
# Relative to the largest value. What leaks through padding (convolutions over tokens, Fourier mixing) is 0.1 and more.
BOUND = 1e-4
# Operators that take no more of a tensor than its shape and dtype.
LIKE = frozenset(name for what in ("zeros", "ones", "full", "empty") for name in (f"new_{what}", f"{what}_like"))


@dataclass(frozen=True)
class MeasurePadding:
    """The program says whether padded batches are exact for it; where they are not, sequences run unpadded."""

    name: str = "padding"

    @torch.no_grad()
    def __call__(self, program: Program) -> Program:
        """Run one sequence alone, and padded on the right beside a longer one: its real rows must answer alike."""
        if program.signature.arrays:
            # Nothing says which rows would be padding's, so none is ever added.
            _refuse_mixed_rows(program, wide_outputs(program, sample.one(program, LENGTH)), LENGTH)
            return program.with_(padding=PaddingRule.UNPADDED)
        padded_to = min(PADDED, program.facts.limits.length or PADDED)
        length = min(LENGTH, padded_to - 1)
        if length < 1:
            return program.with_(padding=PaddingRule.UNPADDED)
        alone = wide_outputs(program, sample.one(program, length))
        padded, other = sample.one(program, length, padded_to), sample.one(program, padded_to, seed=1)
        together = wide_outputs(program, {name: torch.cat([padded[name], other[name]]) for name in padded})
        exact = all(
            same(one, two[:1, : one.shape[1]] if output.kind in PER_TOKEN_OUTPUTS else two[:1])
            for output, one, two in zip(program.signature.outputs, alone, together, strict=True)
        )
        if not exact:  # because of the padding, or of what is beside it
            _refuse_mixed_rows(program, alone, length)
        # What one number of the whole batch decides may turn only on texts longer than these.
        exact = exact and shared_value(program) is None
        return program.with_(padding=PaddingRule.EXACT if exact else PaddingRule.UNPADDED)


def _refuse_mixed_rows(program: Program, alone: tuple[Tensor, ...], length: int) -> None:
    """A text must not answer otherwise because of what else is in its batch; no padding is needed to see that."""
    inputs, others = (sample.one(program, length, seed=seed) for seed in (0, 1))
    together = wide_outputs(program, {name: torch.cat([inputs[name], others[name]]) for name in inputs})
    if not all(same(one, two[:1]) for one, two in zip(alone, together, strict=True)):
        raise TraceError(
            "A text's answer changes with what else is in its batch: the model mixes the rows of a batch, so no text "
            "can be answered as it is alone."
        )


def shared_value(program: Program) -> fx.Node | None:
    """The first number that is computed from all the texts of a batch at once and decides of each one's answer.

    The highest position of a batch is such a one: rotary embeddings that change past some length ask it, so that a
    short text answers otherwise beside a long one. Texts of one length have it in common.
    """
    fed = set(graphs.inputs_of(program.graph))
    needed = graphs.ancestors([program.graph.graph.output_node()])
    nodes: list[fx.Node] = list(program.graph.graph.nodes)
    for node in nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not fed.intersection(one.name for one in node.all_input_nodes):
            continue
        # Sizes are of no text, and what is only shaped or typed as an input holds nothing of it.
        if not isinstance(value, torch.SymInt) and operator_name(node.target, "") not in LIKE:
            fed.add(node.name)
            if isinstance(value, Tensor) and value.dim() == 0 and node in needed:
                return node
    return None


def wide_outputs(program: Program, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs in float32 at least: in half precision a leak hides in the rounding, and grows on longer rows."""
    return graphs.run(program.graph, inputs, widened=torch.float32)[0]


def same(one: Tensor, two: Tensor, bound: float = BOUND) -> bool:
    """Whether two runs agree: what crosses from a neighbour is much larger than the bound."""
    return bool((one - two).abs().max() <= bound * one.abs().max())
