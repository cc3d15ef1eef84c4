"""Linear layers read packed weights: in the least format that holds every number of them, and answers stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import graphs
from headrace.backends.inductor.host.packed import LINEAR_PACKED, held_weights, linear_packed, pack, pack_linear, unpack
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module
from headrace.backends.inductor.runner import Runner

K, N, WORDS = 200, 160, 1000


def grouped(weight: Tensor) -> Tensor:
    return torch.cat([weight, weight[:, -1:].expand(-1, -weight.shape[1] % 32)], 1).unflatten(1, (-1, 32))


def rounded(weight: Tensor, most: int) -> Tensor:
    """What a group of 32 neighbours is when it was held as integers up to `most`, the largest of them reached."""
    groups = grouped(weight)
    scale = (groups.abs().amax(-1, keepdim=True) / most).half().float()
    return ((groups / scale).round().clamp(-most, most) * scale).flatten(1)[:, : weight.shape[1]]


def spread(weight: Tensor, most: int) -> Tensor:
    """The same from the least of each group on."""
    groups = grouped(weight)
    least = groups.amin(-1, keepdim=True).half().float()
    scale = ((groups.amax(-1, keepdim=True) - least) / most).half().float()
    return (((groups - least) / scale).round().clamp(0, most) * scale + least).flatten(1)[:, : weight.shape[1]]


FORMATS = {
    "float32": (lambda weight: weight, torch.float32),
    "bfloat16": (lambda weight: weight.bfloat16().float(), torch.bfloat16),
    "8 bits": (lambda weight: rounded(weight, 127), torch.int8),
    "4 bits": (lambda weight: rounded(weight, 8), torch.int8),
    "4 bits from the least": (lambda weight: spread(weight, 15), torch.int8),
}


class Layers(nn.Module):
    """A layer of whole blocks with a bias, and a table that is the head too, whose last block is not full."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.up, self.down = nn.Embedding(WORDS, K), nn.Linear(K, N), nn.Linear(N, K, bias=False)
        for weight in self.parameters():
            weight.requires_grad_(False).copy_(FORMATS[form][0](weight) if weight.ndim > 1 else weight)

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        rows = self.table(ids)
        return (nn.functional.linear(rows + self.down(self.up(rows).tanh()), self.table.weight),)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "8 bits", "4 bits from the least"])
def run(request: Any) -> tuple[nn.Module, Runner]:
    module, given = Layers(request.param), (torch.arange(3)[None],)
    exported = torch.export.export(module, given, dynamic_shapes=({1: torch.export.Dim("n", min=2)},))
    held = pack_linear(exported).run_decompositions({})
    assert sum(node.target is LINEAR_PACKED for node in held.graph.nodes) == 3
    assert not {f"{name}.weight" for name in ("table", "up", "down")} & set(held.state_dict), "no weight is there twice"
    code, weights = compile_module(graphs.flat_module(held), given, {}, "packed")
    return module, Runner(code.files(), compose(weights))


# One at a time, two, four and eight together, all of them, and so many that blocks are widened first.
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 15, 64, 65, 300])
def test_answers_stay(rows: int, run: tuple[nn.Module, Runner]) -> None:
    module, code = run
    ids = torch.randint(0, WORDS, (1, rows), generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(code([ids])[0], module(ids)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(70, 40), (64, 96)])
@pytest.mark.parametrize("form", FORMATS)
def test_the_least_format_holds_every_number(form: str, shape: tuple[int, int]) -> None:
    make, dtype = FORMATS[form]
    weight = make(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    packed, x = pack(weight), torch.randn(3, shape[1])
    assert packed.numbers.dtype is dtype
    assert torch.equal(unpack(*packed)[: shape[0]], weight)
    torch.testing.assert_close(linear_packed(x, *packed, shape[0]), x @ weight.t())


def test_one_number_between_the_integers_is_enough_for_more_bits() -> None:
    weight = FORMATS["4 bits"][0](torch.randn(640, 64, generator=torch.Generator().manual_seed(0)))
    weight[600, 40] += 1e-3
    assert pack(weight).numbers.dtype is torch.float32


def test_a_weight_of_zeros_is_one_of_integers() -> None:
    packed = pack(torch.zeros(64, 64))
    assert packed.numbers.dtype is torch.int8
    assert not unpack(*packed).any()


@pytest.mark.parametrize(
    ("form", "name", "size"),
    [("float32", "float32", 4), ("bfloat16", "bfloat16", 2), ("4 bits", "int8 in groups of 32", 1)],
)
def test_it_is_said_in_which_formats_weights_are_held(form: str, name: str, size: int) -> None:
    exported = torch.export.export(Layers(form), (torch.tensor([[1, 2, 3]]),))
    (held,) = held_weights(graphs.flat_module(pack_linear(exported)).graph)
    numbers = size * (-(-WORDS // 32) * 32 * K + 160 * K + 224 * N)
    groups = 32 * -(-K // 32) + 5 * -(-K // 32) + 7 * -(-N // 32)  # of each block a scale and an offset a column
    assert held == (name, 3, numbers + (groups * 2 * 32 * 4 if size == 1 else 0))
