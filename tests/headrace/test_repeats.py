"""Stretches of graphs that repeat: which are found, and what each layer is told to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from headrace import graphs
from headrace.graphs.repeats import find_repeats

WIDTH = 8


class Layer(nn.Module):
    """As those of a model: weights of its own, what came before it, and what all share."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.slope = nn.LayerNorm(WIDTH), slope

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        hidden = torch.tanh(self.up(self.norm(x * seen)).relu() * self.slope)
        return x + (self.down(hidden).sigmoid() * seen).relu()


class Stack(nn.Module):
    """Layers by a function that says what the model makes of them."""

    def __init__(self, layers: list[Layer], whole: Callable[[list[Layer], Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.whole = nn.ModuleList(layers), whole

    def forward(self, x: Tensor, seen: Tensor) -> Any:
        return self.whole(list(self.layers), x, seen)


def one_by_one(layers: list[Layer], x: Tensor, seen: Tensor) -> Any:
    for layer in layers:
        x = layer(x, seen)
    return (x.mean(1),)


def tapped(layers: list[Layer], x: Tensor, seen: Tensor) -> Any:
    values = [x]
    for layer in layers:
        values.append(layer(values[-1], seen))
    return (torch.stack(values).mean((0, 2)),)


def shared_from_the_first(layers: list[Layer], x: Tensor, seen: Tensor) -> Any:
    """What the first layer makes is read by all the others, as T5's biases are."""
    x = layers[0](x, seen)
    bias = x.sigmoid()
    for layer in layers[1:]:
        x = layer(x, bias)
    return (x,)


def two_carried(layers: list[Layer], x: Tensor, seen: Tensor) -> Any:
    sums = x * 2
    for layer in layers:
        x = layer(x, seen)
        sums = (sums + x).tanh()
    return (x * sums,)


def in_place(layers: list[Layer], x: Tensor, seen: Tensor) -> Any:
    x = x.clone()
    for layer in layers:
        x.add_(layer(x, seen))
    return (x,)


def exported(layers: list[Layer], whole: Callable[[list[Layer], Tensor, Tensor], Any] = one_by_one) -> Any:
    free = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=1, max=64)}
    sample = torch.ones(3, 5, WIDTH), torch.ones(3, 5, 1)
    return torch.export.export(Stack(layers, whole).eval(), sample, dynamic_shapes=(free, free))


def found(layers: list[Layer], whole: Callable[[list[Layer], Tensor, Tensor], Any] = one_by_one) -> list[Any]:
    return find_repeats(graphs.flat_module(exported(layers, whole)))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_layers_are_found(count: int) -> None:
    (repeat,) = found([Layer() for _ in range(count)])
    assert len(repeat.layers) == count
    assert [value.name for value, _ in repeat.carried] == ["x"]
    assert [value.name for value in repeat.shared] == ["seen"]
    assert len(repeat.weights) == 6
    assert all(len(set(weights)) == count for weights in repeat.weights.values())


def test_layers_of_one_set_of_weights() -> None:
    layer = Layer()
    (repeat,) = found([layer] * 5)
    assert len(repeat.layers) == 5
    assert not repeat.weights
    assert len(repeat.shared) == 7


def test_layers_of_two_kinds_in_turn() -> None:
    (repeat,) = found([Layer(slope) for _ in range(4) for slope in (1.0, 2.0, 1.0)])
    assert len(repeat.layers) == 4
    assert len(repeat.weights) == 18


def test_a_value_on_the_way_that_is_read_later_keeps_its_layers_apart() -> None:
    assert not found([Layer() for _ in range(4)], tapped)


def test_the_first_layer_is_left_out_where_it_makes_what_all_read() -> None:
    (repeat,) = found([Layer() for _ in range(5)], shared_from_the_first)
    assert len(repeat.layers) == 4


def test_two_values_may_be_handed_on() -> None:
    (repeat,) = found([Layer() for _ in range(4)], two_carried)
    assert len(repeat.layers) == 4
    assert len(repeat.carried) == 2


def test_what_writes_in_place_is_no_layer() -> None:
    assert not found([Layer() for _ in range(4)], in_place)


def test_a_layer_of_another_width_ends_the_stretch() -> None:
    layers = [Layer() for _ in range(5)]
    layers[3].up, layers[3].down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    (repeat,) = found(layers)
    assert len(repeat.layers) == 3


def test_two_stretches() -> None:
    wide = [Layer() for _ in range(3)]
    for layer in wide:
        layer.up, layer.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
    both = found([Layer() for _ in range(4)] + wide)
    assert [len(repeat.layers) for repeat in both] == [4, 3]
    taken = [node for repeat in both for layer in repeat.layers for node in layer]
    assert len(taken) == len(set(taken))
    assert all(isinstance(node, fx.Node) for node in taken)
