"""What code depends on, and what it does not: models of one graph share it, whatever their weights and names are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from headrace.backends.inductor import fingerprint
from headrace.backends.inductor.layers import roll_layers
from headrace.backends.inductor.weights import WRITTEN, name_weights, stand_in
from headrace.graphs import flat_module
from tests.headrace.test_repeats import Layer, exported, two_carried


class Scaled(nn.Module):
    """A weight that is so small that the compiler writes it into the code."""

    def __init__(self, scale: float, few: int = WRITTEN) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((few,), scale))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * self.scale,)


def of(program: Any, **options: Any) -> str:
    module = flat_module(program)
    return fingerprint.fingerprint(module, name_weights(module, roll_layers(module)), options)


def scaled(scale: float, few: int) -> str:
    rows = torch.export.Dim("rows", min=2, max=64)
    return of(torch.export.export(Scaled(scale, few), (torch.ones(3, few),), dynamic_shapes=({0: rows},)))


@pytest.fixture(scope="module")
def plain() -> str:
    return of(exported([Layer() for _ in range(3)]))


def test_other_weights_are_the_same_code(plain: str) -> None:
    layers = [Layer() for _ in range(3)]
    for layer in layers:
        nn.init.zeros_(layer.up.bias)
        nn.init.ones_(layer.down.weight)
    assert of(exported(layers)) == plain


@pytest.mark.parametrize(
    "program",
    [
        lambda: exported([Layer() for _ in range(4)]),
        lambda: exported([Layer(2.0) for _ in range(3)]),
        lambda: exported([Layer() for _ in range(3)], two_carried),
        lambda: exported([layer := Layer(), layer, layer]),
        lambda: exported([Layer().bfloat16().float() for _ in range(3)][:2]),
    ],
)
def test_another_graph_is_other_code(program: Any, plain: str) -> None:
    assert of(program()) != plain


def test_so_it_is_with_other_surroundings(plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported([Layer() for _ in range(3)])
    assert of(program) == plain
    assert of(program, option=1) != plain
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.0.0")
        assert of(program) != plain
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_processor", lambda: "another")
        assert of(program) != plain
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_own_code", lambda: "changed")
        assert of(program) != plain
    # By torch itself: what is set from outside is no setting afterwards.
    with torch._inductor.config.patch({"cpp.fallback_scatter_reduce_sum": False}):
        assert of(program) != plain
    assert of(program) == plain


def test_numbers_that_are_written_into_code_are_told_apart() -> None:
    assert scaled(1.0, WRITTEN) == scaled(1.0, WRITTEN)
    assert scaled(1.0, WRITTEN) != scaled(2.0, WRITTEN)
    assert scaled(1.0, WRITTEN + 1) == scaled(2.0, WRITTEN + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_stand_ins_look_like_the_weights_and_have_other_numbers(dtype: torch.dtype) -> None:
    for weight in (torch.zeros(40, 40, dtype=dtype), torch.zeros(80, 40, dtype=dtype)[40:].T):
        made = stand_in((weight,))
        assert (made.shape, made.dtype) == (weight.shape, dtype)
        assert made.untyped_storage().nbytes() == made.nbytes
        assert len(set(made.flatten().tolist())) > 1
        assert all(len(set(part.tolist())) > 1 for part in (*made.unbind(0), *made.unbind(1)))
    few = torch.arange(4).to(dtype)
    torch.testing.assert_close(stand_in((few,)), few)
