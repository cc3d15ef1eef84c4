"""Graph passes: each is checked once it ran, and a breach names pass, node and rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx

from headrace.errors import VerifyError
from headrace.graphs.passes import run_graph_passes


@dataclass(frozen=True)
class Step:
    change: Callable[[fx.Graph], None]
    name: str = "step"

    def __call__(self, graph: fx.Graph) -> None:
        self.change(graph)


def graph() -> fx.Graph:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + y

    return torch.export.export(Model(), (torch.ones(2, 3), torch.ones(2, 3))).run_decompositions({}).graph


def named(made: fx.Graph, name: str) -> Any:
    return next(node for node in made.nodes if node.name == name)


def drop_input(made: fx.Graph) -> None:
    named(made, "add").args = (named(made, "relu"), named(made, "relu"))
    made.erase_node(named(made, "y"))


def return_another(made: fx.Graph) -> None:
    node = named(made, "add")
    with made.inserting_after(node):
        cast = made.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": torch.float16})
    cast.meta["val"] = node.meta["val"].half()
    made.output_node().args = ((cast,),)


def forget_value(made: fx.Graph) -> None:
    node = named(made, "relu")
    with made.inserting_after(node):
        copy = made.call_function(torch.ops.aten.clone.default, (node,))
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def break_order(made: fx.Graph) -> None:
    named(made, "add").append(named(made, "relu"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop_input, r"inputs_stay: inputs: x in place of x, y"),
        (return_another, r"outputs_stay: output: torch\.float16\[2, 3\] in place of torch\.float32\[2, 3\]"),
        (forget_value, r"values_known: clone_default: the pass did not say what its value is"),
        (break_order, r"well_formed: graph: "),
    ],
)
def test_a_breach(change: Callable[[fx.Graph], None], says: str) -> None:
    with pytest.raises(VerifyError, match=r"After the pass step the graph breaks \d+ rule\(s\): .*" + says):
        run_graph_passes(graph(), (Step(change),))


def test_the_pass_that_broke_it_is_named() -> None:
    with pytest.raises(VerifyError, match="After the pass second"):
        run_graph_passes(graph(), (Step(lambda made: None, "first"), Step(drop_input, "second")))


def test_a_sound_pass() -> None:
    def negate(made: fx.Graph) -> None:
        named(made, "relu").target = torch.ops.aten.neg.default

    made = graph()
    run_graph_passes(made, (Step(negate),))
    assert named(made, "relu").target is torch.ops.aten.neg.default
