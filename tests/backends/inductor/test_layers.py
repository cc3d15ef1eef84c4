"""Layers as a loop: the same answers, and a graph that is no longer for more of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from headrace import graphs
from headrace.backends.inductor.layers import roll_layers
from headrace.compat.torch import while_loop
from tests.headrace.test_repeats import (
    WIDTH,
    Layer,
    exported,
    in_place,
    one_by_one,
    shared_from_the_first,
    tapped,
    two_carried,
)

WHOLES = (one_by_one, shared_from_the_first, two_carried, tapped, in_place)
SIZES = ((1, 1), (1, 9), (4, 3))


def roll(module: fx.GraphModule) -> None:
    """With the values of the weights, which compiled code is given apart."""
    for name, parts in roll_layers(module).items():
        setattr(module, name, torch.stack(parts))


def nodes(module: fx.GraphModule) -> int:
    return sum(len(one.graph.nodes) for one in module.modules() if isinstance(one, fx.GraphModule))


@pytest.mark.parametrize("whole", WHOLES)
def test_answers_stay(whole: Any) -> None:
    program = exported([Layer(slope) for _ in range(3) for slope in (1.0, 2.0)], whole)
    plain, rolled = graphs.flat_module(program), graphs.flat_module(program)
    roll(rolled)
    loops = [node for node in rolled.graph.nodes if node.target is while_loop]
    assert len(loops) == (0 if whole in (tapped, in_place) else 1)
    for size in SIZES:
        given = torch.randn(*size, WIDTH), torch.rand(*size, 1)
        with torch.no_grad():
            torch.testing.assert_close(rolled(*given), plain(*given), rtol=0, atol=0)


def test_the_graph_grows_no_more() -> None:
    made = [graphs.flat_module(exported([Layer() for _ in range(count)])) for count in (2, 12)]
    for module in made:
        roll(module)
    assert nodes(made[0]) == nodes(made[1])


def test_the_weights_of_the_layers_are_held_once() -> None:
    module = graphs.flat_module(exported([Layer() for _ in range(6)]))
    whole = sum(weight.nbytes for weight in module.state_dict().values())
    roll(module)
    read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    held = dict(module.named_buffers()) | dict(module.named_parameters())
    assert sum(held[name].nbytes for name in read if name in held) == whole


@pytest.mark.parametrize("name", ["bert", "llama", "gemma3", "albert"])
def test_layers_of_models(name: str, analysed: Any) -> None:
    from headrace.ir import Task
    from headrace.lowering.pipeline import prepare

    program = prepare(analysed(name, "AutoModel"), Task.EMBED)
    plain, rolled = graphs.flat_module(program.graph), graphs.flat_module(program.graph)
    roll(rolled)
    loops = [node for node in rolled.graph.nodes if node.target is while_loop]
    assert len(loops) <= 1
    given = tuple(program.graph.example_inputs[1][name] for name in program.signature.input_names)
    with torch.no_grad():
        torch.testing.assert_close(rolled(*given), plain(*given), rtol=0, atol=0)
