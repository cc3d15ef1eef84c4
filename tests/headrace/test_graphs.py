"""Exported graphs are run, rewritten and cut as programs, on either torch: what comes out is again a whole program."""

import io

import pytest
import torch
from torch import nn

from headrace import graphs
from headrace.ops.attention import ATTENTION, MASK
from tests.tiny import fed, token_ids


def inputs(program, length=6, batch=2):
    return fed(program, token_ids(length, batch=batch))


def equal(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def program(traced):
    return traced("bert").program


def test_run_is_the_modules_own_call(program):
    given = inputs(program)
    outputs, taps = graphs.run(program.graph, given)
    assert equal(outputs, program.graph.module(check_guards=False)(**given))
    assert taps == {}
    assert not any(value.requires_grad for value in outputs)


def test_tapping_changes_no_answer(program):
    given = inputs(program)
    assert equal(graphs.run(program.graph, given, ["attention"])[0], graphs.run(program.graph, given)[0])


def test_run_taps_named_nodes(program):
    names = [node.name for node in program.graph.graph.nodes if node.target in (ATTENTION, MASK)]
    _, seen = graphs.run(program.graph, inputs(program), names)
    assert set(seen) == set(names)
    assert seen["mask"].dtype is torch.bool
    assert seen["attention"].shape == (2, 6, 4, 8)


def test_run_taps_an_input(program):
    given = inputs(program)
    _, seen = graphs.run(program.graph, given, ["input_ids"])
    assert torch.equal(seen["input_ids"], given["input_ids"])


def test_inputs_in_order(program):
    assert graphs.inputs_of(program.graph) == ("input_ids", "attention_mask", "position_ids", "token_type_ids")


def test_bindings_in_the_order_of_placeholders(program):
    given = inputs(program)
    bound = graphs.bindings(program.graph, given)
    placeholders = [node for node in program.graph.graph.nodes if node.op == "placeholder"]
    assert len(bound) == len(placeholders)
    for node, value in zip(placeholders, bound, strict=True):
        assert tuple(value.shape[2:]) == tuple(node.meta["val"].shape[2:])
        if node.name in given:
            assert value is given[node.name]


def nothing(graph):
    pass


def scale_twice(graph):
    for node in graph.nodes:
        if node.target is ATTENTION:
            node.args = (*node.args[:6], node.args[6] * 2, *node.args[7:])


def test_a_rewrite_that_changes_nothing(program):
    again = graphs.rewrite(program.graph, nothing)
    given = inputs(program)
    assert equal(graphs.run(again, given)[0], graphs.run(program.graph, given)[0])
    assert set(again.state_dict) <= set(program.graph.state_dict)
    assert graphs.inputs_of(again) == program.signature.input_names


def test_a_rewrite_leaves_the_original_alone(program):
    text, given = str(program.graph.graph), inputs(program)
    before = graphs.run(program.graph, given)[0]
    again = graphs.rewrite(program.graph, scale_twice)
    assert str(program.graph.graph) == text
    assert equal(graphs.run(program.graph, given)[0], before)
    assert not equal(graphs.run(again, given)[0], before)


def test_weights_are_shared_by_a_rewrite(program):
    again = graphs.rewrite(program.graph, scale_twice)
    assert again.state_dict.keys() == program.graph.state_dict.keys() != set()
    for name, value in again.state_dict.items():
        assert value.data_ptr() == program.graph.state_dict[name].data_ptr()


def test_a_rewritten_program_is_a_whole_one(program):
    """It runs as a module at other shapes, decomposes again, and survives saving."""
    again = graphs.rewrite(program.graph, scale_twice)
    for batch, length in ((1, 1), (3, 17)):
        given = inputs(program, length, batch)
        expected = graphs.run(again, given)[0]
        assert equal(again.module(check_guards=False)(**given), expected)
        assert equal(graphs.run(again.run_decompositions({}), given)[0], expected)
    buffer = io.BytesIO()
    torch.export.save(again, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer)
    given = inputs(program)
    assert equal(graphs.run(loaded, given)[0], graphs.run(again, given)[0])
    kept = [node.args[7:9] for node in loaded.graph.nodes if node.target is ATTENTION]
    assert [(kind, list(window)) for kind, window in kept] == [("bidirectional", [-1, -1])] * 2


def test_nodes_that_a_rewrite_leaves_unused_are_gone(program):
    def first_layer_alone(graph):
        first, second = (node for node in graph.nodes if node.target is ATTENTION)
        second.replace_all_uses_with(first)

    again = graphs.rewrite(program.graph, first_layer_alone)
    assert sum(node.target is ATTENTION for node in again.graph.nodes) == 1
    gone = set(program.graph.state_dict) - set(again.state_dict)
    assert {name.split(".attention.self.")[1] for name in gone if "layer.1.attention.self" in name} == {
        f"{part}.{kind}" for part in ("query", "key", "value") for kind in ("weight", "bias")
    }
    assert equal(graphs.run(again, inputs(program))[0], again.module(check_guards=False)(**inputs(program)))


@pytest.mark.parametrize("keep", [(0,), (1,), (2,), (1, 0), (2, 0)])
def test_keep_outputs(traced, keep):
    program = traced("qwen2", "AutoModelForCausalLM").program
    given = inputs(program)
    whole = graphs.run(program.graph, given)[0]
    cut = graphs.keep_outputs(program.graph, keep)
    expected = [whole[i] for i in keep]
    assert equal(graphs.run(cut, given)[0], expected)
    assert equal(cut.module(check_guards=False)(**given), expected)
    assert equal(graphs.run(cut.run_decompositions({}), given)[0], expected)
    assert len(cut.graph_signature.user_outputs) == len(keep)
    assert equal(graphs.run(program.graph, given)[0], whole)


def test_inputs_that_nothing_reads_any_more_stay(traced):
    """A caller's arguments do not depend on what is kept; weights do."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Embedding(96, 4), nn.Embedding(96, 4)
            self.register_buffer("constant", torch.ones(4))

        def forward(self, input_ids, token_type_ids):
            return self.one(input_ids), self.other(token_type_ids) + self.constant

    ids = torch.ones(2, 7, dtype=torch.int64)
    shape = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=1)}
    names = ("input_ids", "token_type_ids")
    exported = torch.export.export(
        Two(), (), kwargs=dict.fromkeys(names, ids), dynamic_shapes=dict.fromkeys(names, shape), strict=False
    ).run_decompositions({})
    cut = graphs.keep_outputs(exported, (0,))
    assert graphs.inputs_of(cut) == names
    assert set(cut.state_dict) == {"one.weight"}
    assert set(graphs.keep_outputs(exported, (1,)).state_dict) == {"other.weight", "constant"}
    given = dict.fromkeys(names, torch.ones(3, 2, dtype=torch.int64))
    assert equal(graphs.run(cut, given)[0], cut.module(check_guards=False)(**given))
