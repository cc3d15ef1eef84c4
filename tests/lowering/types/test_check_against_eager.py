"""The traced graph is held against the eager model: what the trace lost or bent is refused."""

import pytest
import torch

from headrace import graphs
from headrace.errors import NonFiniteError, TraceError
from headrace.lowering.types.check_against_eager import BOUNDS, HALF_BOUND, Agree
from headrace.ops.attention import ATTENTION


def with_scale(program, factor):
    """The program whose second attention scales its scores otherwise."""

    def edit(graph):
        node = [node for node in graph.nodes if node.target is ATTENTION][1]
        node.args = (*node.args[:6], node.args[6] * factor, *node.args[7:])

    return program.with_(exported=graphs.rewrite(program.graph, edit))


@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt-oss", "fnet"])
def test_an_honest_trace_is_left_alone(traced, name):
    made = traced(name)
    assert Agree(made.behaviour)(made.program) is made.program


def test_a_bent_graph_is_refused(traced):
    made = traced("qwen2")
    with pytest.raises(TraceError) as refused:
        Agree(made.behaviour)(with_scale(made.program, 1.2))
    assert "The traced graph and the eager model differ by" in str(refused.value)
    assert "in hidden (relative; 0.0002 is allowed)" in str(refused.value)


class Answers:
    """An eager model that answers as it is told."""

    def __init__(self, *values):
        self.values = values

    def outputs(self, inputs):
        return self.values


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_answers_no_number_is_refused(traced, bad):
    made = traced("qwen2")
    values = [torch.full_like(value, bad) for value in made.behaviour.outputs(_inputs(made.program))]
    with pytest.raises(NonFiniteError, match="The original model's answer to plain tokens holds NaN or infinite"):
        Agree(Answers(*values))(made.program)


def test_every_output_is_compared(traced):
    made = traced("qwen2")
    first, second = made.behaviour.outputs(_inputs(made.program))
    with pytest.raises(TraceError, match="in embedding"):
        Agree(Answers(first, second * 1.01))(made.program)


def test_bounds_tell_rounding_from_loss():
    """Float32 rounds at 1e-7 a step; a half-precision answer carries 1e-2 and more through a few layers."""
    assert set(BOUNDS.values()) == {2e-4}
    assert HALF_BOUND == 0.1


def _inputs(program):
    from headrace import sample

    return sample.one(program, 5)
