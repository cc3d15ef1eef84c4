"""Graphs in parts, compiled on the CPU as a GPU's are: answers of every size, at a cost that layers do not add to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx

from headrace import feed, graphs, sample
from headrace.backends.gpu.code import Code, in_pythons_words
from headrace.backends.gpu.parts import split
from headrace.backends.inductor.host.paged import use_host_attention
from headrace.ir import Axis, Form, Input, Layout, Program, Role, Task
from headrace.lowering.pipeline import prepare

LONGEST = 1 << 16
QWEN3 = {"num_hidden_layers": 6}
GEMMA3 = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}


def parts_of(module: fx.GraphModule) -> list[str]:
    """The calls of parts, in order."""
    return [str(node.target) for node in module.graph.nodes if node.op == "call_module"]


def code_of(program: Program, inputs: dict[str, Tensor], module: fx.GraphModule) -> Code:
    with torch.no_grad():
        return Code(module, program, [inputs[name] for name in program.signature.input_names], LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), [("bert", QWEN3), ("gemma3", GEMMA3), ("mixtral", {})])
def test_rows_of_every_size(name: str, config: dict[str, Any], analysed: Any) -> None:
    program = prepare(analysed(name, **config), Task.EMBED, Layout.PACKED)
    code = code_of(program, sample.even_row(program, 256, 9), graphs.flat_module(program.graph))
    for tokens, count in ((256, 9), (300, 5), (7, 2), (2, 2), (900, 40)):
        row = sample.even_row(program, tokens, count)
        with torch.no_grad():
            found = code(*(row[given] for given in program.signature.input_names))
        torch.testing.assert_close(found[0], graphs.run(program.graph, row)[0][0], atol=1e-5, rtol=1e-5)
    assert len(code._made) == 1, "no size was taken for a number"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), [("qwen3", QWEN3), ("gemma3", GEMMA3)])
def test_steps_write_to_the_caches_of_their_layer(name: str, config: dict[str, Any], analysed: Any) -> None:
    """A layer that repeats is given its own; those of each group have another number of blocks."""
    program = prepare(analysed(name, "AutoModelForCausalLM", **config), Task.GENERATE)
    module = graphs.flat_module(graphs.rewrite(program.graph, use_host_attention))
    caches = {cache.name: torch.zeros((8, program.form.block, *cache.sizes)) for cache in program.form.caches}
    tables = [[4, 1]] * len(program.form.groups)
    steps = [
        [feed.Piece(np.arange(5, 9), 0, tables, 0, 1), feed.Piece(np.arange(30, 47), 0, [[2, 3]] * len(tables), 1, 1)],
        [feed.Piece(np.array([7, 9]), 4, tables, 0, 2), feed.Piece(np.array([3, 5]), 17, [[2, 3]] * len(tables), 1, 2)],
    ]
    made = [sample.tensors(program, feed.cached(program, pieces)) for pieces in steps]
    code = code_of(program, made[0] | {name: cache.clone() for name, cache in caches.items()}, module)
    assert parts_of(code._module).count("layer_0") > 1
    more = {name: torch.zeros((9 + order, *cache.shape[1:])) for order, (name, cache) in enumerate(caches.items())}
    same = {name: cache.clone() for name, cache in more.items()}
    for inputs in made:
        with torch.no_grad():
            found = code(*((inputs | more)[name] for name in program.signature.input_names))
        torch.testing.assert_close(found[0], graphs.run(program.graph, inputs | same)[0][0], atol=1e-5, rtol=1e-5)
        for name, cache in more.items():
            torch.testing.assert_close(cache, same[name], atol=1e-5, rtol=1e-5)
    assert len(code._made) == 1, "no size was taken for a number"


def test_the_parts_are_no_more_for_more_layers(analysed: Any) -> None:
    found = []
    for layers in (3, 7):
        program = prepare(analysed("bert", num_hidden_layers=layers), Task.EMBED, Layout.PACKED)
        module = in_pythons_words(graphs.flat_module(program.graph))
        weights = split(module)
        assert len(weights) == len(list(program.graph.parameters())) + len(list(program.graph.buffers()))
        calls = parts_of(module)
        assert calls.count("layer_0") == layers
        parts: list[Any] = [module.get_submodule(name) for name in set(calls)]
        found.append(sum(len(part.graph.nodes) for part in parts))
    assert found[0] == found[1]


def test_sizes_that_the_code_was_not_made_for_are_compiled_anew() -> None:
    """Its graph asks whether rows are even in number, which one piece of code answers but one way."""

    def halves(x: Tensor) -> Tensor:
        return x[: x.shape[0] // 2] * 2 if x.shape[0] % 2 == 0 else x * 3

    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = torch.empty(4, 8)
    graph.output((graph.call_function(halves, (given,)),))
    axes: Any = Axis("rows"), Axis("width", 8)
    program: Any = SimpleNamespace(
        signature=SimpleNamespace(inputs=(Input("x", Role.ARRAY, "float32", axes),), input_names=("x",)),
        form=Form(),
        dtype="float32",
    )
    code = code_of(program, {"x": torch.randn(4, 8)}, fx.GraphModule({}, graph))
    for rows, made in ((4, 1), (10, 1), (5, 2), (9, 2), (6, 2)):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(code(x)[0], halves(x))
        assert len(code._made) == made
