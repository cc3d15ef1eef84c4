"""Large linear layers in eight bits: which, and that the answers stay near."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import graphs, sample
from headrace.errors import InputError
from headrace.ir import Layout, Quantized, Task
from headrace.lowering.optimise.quantize import QuantizeLinear
from headrace.lowering.pipeline import prepare
from headrace.ops.quantized import LINEAR_FP8, LINEAR_INT8

SEQUENCE = "AutoModelForSequenceClassification"


def quantised(program: Any) -> list[Any]:
    return [node for node in program.graph.graph.nodes if node.target in (LINEAR_FP8, LINEAR_INT8)]


@pytest.mark.parametrize("scheme", ["fp8", "int8"])
@pytest.mark.parametrize(
    ("name", "layers"),
    # Two layers of four products each (queries, keys and values are one; so are gate and up), ALBERT's by one weight;
    # GPT-2's weights lie the other way round.
    [("bert", 8), ("albert", 9), ("qwen3", 8), ("gpt2", 8)],
)
def test_the_answers_stay_near(name: str, layers: int, scheme: str, analysed: Any) -> None:
    plain = prepare(analysed(name), Task.EMBED, Layout.PACKED)
    program = QuantizeLinear(scheme, least=32)(plain)
    assert len(quantised(program)) == layers
    assert program.form.quantized == Quantized(scheme, layers, layers)
    assert plain.form.quantized is None
    assert not quantised(plain)
    inputs = sample.row(program, (5, 17, 3))
    (one,), (other,) = (graphs.run(each.graph, inputs)[0] for each in (plain, program))
    cosines = torch.cosine_similarity(one, other)
    assert (cosines > 0.98).all(), cosines
    assert not torch.allclose(one, other, atol=1e-4), "nothing was rounded"


def test_a_weight_is_held_once(analysed: Any) -> None:
    """In eight bits alone; layers that share one share it still."""
    for name, count in (("bert", 8), ("albert", 5)):
        held = graphs.weights_of(QuantizeLinear(least=32)(prepare(analysed(name), Task.EMBED, Layout.PACKED)).graph)
        eighths = [weight for weight, value in held.items() if value.dtype is torch.float8_e4m3fn]
        assert len(eighths) == count
        assert not [weight for weight in held if f"{weight}_rounded" in held]


def test_the_padded_layout(analysed: Any) -> None:
    program = QuantizeLinear(least=32)(prepare(analysed("bert"), Task.EMBED))
    assert len(quantised(program)) == 12  # nothing is merged there


def test_what_reads_a_pooled_vector_is_left_alone(analysed: Any) -> None:
    """BERT's head: a square layer of the pooled row, and the labels."""
    program = QuantizeLinear(least=32)(prepare(analysed("bert", SEQUENCE), Task.CLASSIFY, Layout.PACKED))
    assert len(quantised(program)) == 8
    assert sum(node.target is torch.ops.aten.linear.default for node in program.graph.graph.nodes) == 2


def test_a_table_that_tokens_are_looked_up_in_is_left_alone(analysed: Any) -> None:
    """A masked-LM head that shares it, 96 x 32: else it would be there twice."""
    program = QuantizeLinear(least=32)(prepare(analysed("bert", "AutoModelForMaskedLM"), Task.FILL_MASK, Layout.PACKED))
    assert program.form.quantized == Quantized("fp8", 9, 10)  # the head's own square layer too


def test_sizes_that_do_not_divide_or_are_small_are_left_alone(analysed: Any) -> None:
    with pytest.raises(InputError, match=r"None of the 8 linear layers.*divide by 16 and reach 256.*Leave it out"):
        QuantizeLinear()(prepare(analysed("bert"), Task.EMBED, Layout.PACKED))
    program = QuantizeLinear(least=64)(prepare(analysed("bert", hidden_size=64), Task.EMBED, Layout.PACKED))
    assert len(quantised(program)) == 8
    with pytest.raises(InputError):
        QuantizeLinear(least=16)(
            prepare(analysed("bert", hidden_size=40, intermediate_size=72), Task.EMBED, Layout.PACKED)
        )
