"""How torch is made to trace at less cost: the graphs are the same, and nobody else's traces change."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

from headrace.compat.torch import asked_of_sizes, shapes_at_once, without_code, without_stacks

OPERATORS = (torch.ops.aten.linear.default, torch.ops.aten.layer_norm.default)


class Layers(nn.Module):
    """Linear layers and norms over rows in every form that models give them, and what is made of their shapes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain, self.unbiased = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.norm, self.bare, self.whole = nn.LayerNorm(6), nn.LayerNorm(8, elementwise_affine=False), nn.LayerNorm(2)

    def forward(self, rows):
        wide = self.bare(self.plain(self.norm(rows)))
        crossed = self.unbiased(wide.transpose(0, 1)).transpose(0, 1)
        heads = self.whole(self.norm(crossed.transpose(1, 2).contiguous().transpose(1, 2)).unflatten(-1, (3, 2)))
        scores = nn.functional.linear(crossed[0], rows[1])  # a weight of free sizes
        # Alone, of vectors and of a transposed weight.
        vectors = nn.functional.linear(rows[:, 0], self.unbiased.weight.t()) + self.plain(rows[0, 0])
        return wide, heads.flatten(2), scores, vectors, nn.functional.linear(rows, self.plain.weight[0])


def traced(context):
    dims = {0: Dim("batch", min=1), 1: Dim("sequence", min=1)}
    with torch.no_grad(), context:
        return export(Layers(), (torch.randn(3, 5, 6),), dynamic_shapes=(dims,), strict=False)


def described(exported):
    """Each node with its value, whose sizes are known by the order in which they first appear."""
    found = []
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if node.users and isinstance(value, torch.Tensor):
            found.append((str(node.target), str(value.dtype), str(value.device), tuple(value.shape), value.stride()))
    return [str(one) for one in found]


@pytest.mark.parametrize("context", [shapes_at_once, without_code, without_stacks])
def test_the_graph_is_the_same(context):
    usual, made = traced(nullcontext()), traced(context())
    assert described(made) == described(usual)
    assert str(made.range_constraints) == str(usual.range_constraints)
    assert made._guards_code == usual._guards_code
    rows = torch.randn(2, 4, 6)
    for one, other in zip(made.module()(rows), Layers()(rows), strict=True):
        assert torch.equal(one, other)


def test_whoever_computes_meanwhile_is_given_numbers():
    layers, rows = Layers(), torch.randn(3, 5, 6)
    before = layers(rows)
    with shapes_at_once(), torch._dispatch.python.enable_python_dispatcher():
        assert all(map(torch.equal, before, layers(rows)))


def test_whoever_records_what_they_are_made_of_is_given_it():
    layers = Layers()
    weights = dict(layers.named_parameters())

    def recorded():
        def run(held, rows):
            return torch.func.functional_call(layers, held, (rows,))

        graph = make_fx(run, tracing_mode="symbolic")(weights, torch.randn(3, 5, 6)).graph
        return [str(node.target) for node in graph.nodes]

    before = recorded()
    with shapes_at_once():
        assert recorded() == before
    assert "aten.addmm.default" in before
    assert "aten.native_layer_norm.default" in before


def test_a_layer_that_does_not_fit_is_refused_as_ever():
    class Wrong(nn.Module):
        def forward(self, rows):
            return nn.functional.linear(rows, torch.ones(4, 7))

    with shapes_at_once(), pytest.raises(Exception, match="same reduction dim"):
        export(Wrong(), (torch.randn(3, 5, 6),), dynamic_shapes=({0: Dim("batch")},), strict=False)


def test_the_operators_are_as_they_were_afterwards():
    before = [dict(operator.py_kernels) for operator in OPERATORS]
    with pytest.raises(KeyError), shapes_at_once():
        raise KeyError
    assert [dict(operator.py_kernels) for operator in OPERATORS] == before


def test_what_a_trace_asks_of_sizes_is_told_while_it_asks():
    class Asking(nn.Module):
        def forward(self, rows):
            return rows * 2 if rows.shape[1] % 2 else rows

    told = []
    with asked_of_sizes(lambda asked, answer: told.append((asked, answer))), pytest.raises(Exception, match="sequence"):
        export(Asking(), (torch.ones(3, 5),), dynamic_shapes=({1: Dim("sequence", min=1)},), strict=False)
    assert any("Mod" in str(asked) and bool(answer) for asked, answer in told)
    count = len(told)
    export(nn.Identity(), (torch.ones(3, 5),), dynamic_shapes=({1: Dim("sequence", min=1)},), strict=False)
    assert len(told) == count
