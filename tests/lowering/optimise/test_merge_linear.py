"""Merged linear layers: fewer products, the same answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs, sample
from headrace.ir import Layout, Task
from headrace.lowering.forms.choose import ChooseLayout
from headrace.lowering.optimise.merge_linear import LINEAR, MergeLinear
from headrace.lowering.pipeline import prepare

LENGTHS = (5, 17, 3)


def linears(program: Any) -> list[Any]:
    return [node for node in program.graph.graph.nodes if node.target is LINEAR]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("bert", 12, 8), ("albert", 13, 9), ("qwen3", 14, 8), ("qwen2", 14, 8), ("gpt2", 0, 0)],
)
@pytest.mark.parametrize("layout", [Layout.PADDED, Layout.PACKED])
def test_one_product_for_what_reads_the_same_rows(
    name: str, before: int, after: int, layout: Layout, analysed: Any
) -> None:
    """Queries, keys and values (biased in Qwen 2, not in Qwen 3), gate and up; ALBERT's layers share their weights."""
    apart = ChooseLayout(layout)(prepare(analysed(name), Task.EMBED))
    merged = MergeLinear()(apart)
    assert (len(linears(apart)), len(linears(merged))) == (before, after)
    if layout is Layout.PADDED:
        ids = torch.arange(12).reshape(2, 6) + 3
        named = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        inputs = {n: named.get(n, torch.arange(6).expand(2, 6)) for n in apart.signature.input_names}
    else:
        inputs = sample.row(apart, LENGTHS)
    (one,), (other,) = (graphs.run(program.graph, inputs)[0] for program in (apart, merged))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_weights_are_held_once(analysed: Any) -> None:
    """The parts are gone from the program, and layers that share theirs share the merged ones."""
    for name, copies in (("bert", 2), ("albert", 1)):
        held = graphs.weights_of(MergeLinear()(prepare(analysed(name), Task.EMBED)).graph)
        assert sum(weight.startswith("merged") and weight.endswith("weight") for weight in held) == copies
        assert not [weight for weight in held if "query" in weight or "key" in weight]


def test_a_program_without_such_layers_is_left_alone(analysed: Any) -> None:
    program = prepare(analysed("gpt2"), Task.EMBED)
    assert MergeLinear()(program) is program
