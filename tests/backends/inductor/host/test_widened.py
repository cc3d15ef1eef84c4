"""Weights that are bfloat16 though a program holds them as float32 are read as such, and answers stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import graphs
from headrace.backends.inductor.host.widened import LINEAR_WIDENED, hold_halves, linear_widened, pack
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module
from headrace.backends.inductor.runner import Runner

K, N, WORDS = 200, 160, 1000


class Layers(nn.Module):
    """A layer of whole blocks with a bias, and a table that is the head too, whose last block is not full."""

    def __init__(self, tail: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.up, self.down = nn.Embedding(WORDS, K), nn.Linear(K, N), nn.Linear(N, K, bias=False)
        for weight in self.parameters():
            weight.requires_grad_(False).copy_(weight.bfloat16().float() + (tail if weight.ndim > 1 else 0))

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        rows = self.table(ids)
        return (nn.functional.linear(rows + self.down(self.up(rows).tanh()), self.table.weight),)


def exported(module: nn.Module) -> Any:
    return torch.export.export(module, (torch.arange(3)[None],), dynamic_shapes=({1: torch.export.Dim("n", min=2)},))


@pytest.fixture(scope="module")
def run() -> Any:
    held = hold_halves(exported(Layers())).run_decompositions({})
    assert sum(node.target is LINEAR_WIDENED for node in held.graph.nodes) == 3
    assert all(weight.dtype is not torch.float32 for weight in held.state_dict.values() if weight.ndim > 1)
    code, weights = compile_module(graphs.flat_module(held), (torch.arange(3)[None],), {}, "widened")
    return Runner(code.files(), compose(weights))


# One at a time, two, four and eight together, all of them, and so many that blocks are widened first.
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 15, 64, 65, 300])
def test_answers_stay(rows: int, run: Any) -> None:
    ids = torch.randint(0, WORDS, (1, rows), generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(run([ids])[0], Layers()(ids)[0], rtol=1e-5, atol=1e-4)


def test_the_operator_means_a_product() -> None:
    weight, x = torch.randn(70, 40).bfloat16().float(), torch.randn(3, 40)
    torch.testing.assert_close(linear_widened(x, pack(weight), 70), x @ weight.t())


def test_weights_of_more_digits_stay_as_they_are() -> None:
    program = exported(Layers(tail=1e-5))
    assert hold_halves(program) is program
