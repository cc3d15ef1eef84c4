"""Linear layers in a host's compiled code answer as their definition, and take in what follows them and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace import graphs
from headrace.backends.inductor.host import dense
from headrace.backends.inductor.memory import compose
from headrace.backends.inductor.packages import compile_module
from headrace.backends.inductor.runner import Runner
from headrace.compat.torch_cpu import multiplies_bfloat16, tile_dtypes
from headrace.ops.quantized import LINEAR_INT8, round_to_integers

# More than one tile of products deep, neither whole tiles wide; a row of the other has fewer numbers than a register.
SIZES = ((72, 136), (1600, 70), (6, 10))
ROWS = (1, 7, 64, 203)


class Layers(nn.Module):
    """Layers with everything that can follow one, of each size."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def drawn(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(sizes, generator=generator).to(dtype) * sizes[-1] ** -0.5)

        self.weights = nn.ParameterList(drawn(width, depth) for depth, width in SIZES)
        self.rows = nn.ParameterList(drawn(3, width) for _, width in SIZES)

    def forward(self, xs: list[Tensor], residuals: list[Tensor]) -> list[Tensor]:
        made = []
        for x, residual, weight, (bias, scale, shift) in zip(xs, residuals, self.weights, self.rows, strict=True):
            plain = functional.linear(x, weight, bias)
            activated = [functional.gelu, lambda y: functional.gelu(y, approximate="tanh"), torch.relu, functional.silu]
            made += [each(functional.linear(x, weight, bias)) for each in activated]
            made += [functional.linear(x, weight), residual + functional.linear(x, weight, bias).clone()]
            made.append(functional.layer_norm(functional.linear(x, weight, bias) + residual, bias.shape, scale, shift))
            made.append(functional.layer_norm(functional.gelu(functional.linear(x, weight)), bias.shape))
            made.append(plain + functional.layer_norm(plain, bias.shape, scale, shift))  # read twice
        return made


def drawn(rows: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(rows)
    return tuple(
        [torch.randn((1, rows, sizes[place]), generator=generator).to(dtype) for sizes in SIZES] for place in (0, 1)
    )  # type: ignore[return-value]


def exported(dtype: torch.dtype) -> Any:
    rows = torch.export.Dim("rows", min=2)
    each = [{1: rows}] * len(SIZES)
    return torch.export.export(Layers(dtype), drawn(9, dtype), dynamic_shapes=(each, each))


def called(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


# How weights may lie, and the processors that multiply them so.
PRODUCTS = {"AVX512"} if multiplies_bfloat16() else set[str]()
LAID = {
    "float32": (torch.float32, dense.Tiles(dense.COLUMNS), {"AVX2", "AVX512"}),
    "float32-ours": (torch.float32, dense.Tiles(dense.OWN_COLUMNS), {"AVX2"}),
    "bfloat16": (torch.bfloat16, dense.Tiles(dense.COLUMNS, 2), PRODUCTS),
    "bfloat16-widened": (torch.bfloat16, dense.Tiles(dense.COLUMNS), {"AVX2", "AVX512"}),
    "bfloat16-ours": (torch.bfloat16, dense.Tiles(dense.OWN_COLUMNS), {"AVX2"}),
}


@pytest.fixture(scope="module", params=LAID)
def run(request: Any) -> tuple[torch.dtype, Callable[..., Any]]:
    dtype, tiles, processors = LAID[request.param]
    if torch.backends.cpu.get_cpu_capability() not in processors:
        pytest.skip(f"this processor does not multiply {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "tiles_of", lambda _: tiles)
        module = graphs.flat_module(dense.use_dense(exported(dtype)))
    example = tuple(x for part in drawn(9, dtype) for x in part)
    code, weights = compile_module(module, example, {}, "layers")
    return dtype, Runner(code.files(), compose(weights))


@pytest.mark.parametrize("rows", ROWS)
def test_it_answers_as_float64(rows: int, run: tuple[torch.dtype, Callable[..., Any]]) -> None:
    dtype, code = run
    given = drawn(rows, dtype)
    wanted = Layers(dtype).double()(*([x.double() for x in part] for part in given))
    bound = 1e-5 if dtype is torch.float32 else 1.2e-2
    for one, other in zip(code([x for part in given for x in part]), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound)


class Integers(nn.Module):
    """Layers that multiply integers, with what can follow one, of each size."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        made = [round_to_integers(torch.randn(width, depth, generator=generator), 63) for depth, width in INTEGER_SIZES]
        self.weights = nn.ParameterList(nn.Parameter(values, requires_grad=False) for values, _ in made)
        self.scales = nn.ParameterList(nn.Parameter(scale[:, 0]) for _, scale in made)
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(3, width)) for _, width in INTEGER_SIZES)

    def forward(self, xs: list[Tensor], residuals: list[Tensor]) -> list[Tensor]:
        made = []
        for x, added, weight, scale, (bias, *norm) in zip(
            xs, residuals, self.weights, self.scales, self.rows, strict=True
        ):
            made.append(functional.gelu(LINEAR_INT8(x, weight, scale, bias)))
            made.append(functional.layer_norm(LINEAR_INT8(x, weight, scale, None) + added, bias.shape, *norm))
        return made


INTEGER_SIZES = ((72, 136), (1600, 70), (8, 10))
BYTES = {
    "ours": dense.Tiles(32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16, 4),
    "amx": dense.Tiles(dense.COLUMNS, 4),
}


@pytest.fixture(scope="module", params=BYTES)
def integers(request: Any) -> tuple[nn.Module, Callable[..., Any]]:
    if torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}:
        pytest.skip("this processor has neither AVX2 nor AVX512")
    if request.param == "amx" and torch.int8 not in tile_dtypes():
        pytest.skip("this processor multiplies no tiles of int8 (AMX)")
    rows, module = torch.export.Dim("rows", min=2), Integers()
    each = [{1: rows}] * len(INTEGER_SIZES)
    made = torch.export.export(module, inputs(9), dynamic_shapes=(each, each))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "tiles_of", lambda _: BYTES[request.param])
        swapped = dense.use_dense(made)
    assert called(swapped).count("headrace.linear_dense.default") == 2 * len(INTEGER_SIZES)
    assert not [name for name in called(swapped) if "int8" in name or "gelu" in name or "norm" in name]
    flat = tuple(x for part in inputs(9) for x in part)
    code, weights = compile_module(graphs.flat_module(swapped), flat, {}, "integers")
    return module, Runner(code.files(), compose(weights))


def inputs(rows: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(rows)
    return tuple(
        [torch.randn((1, rows, sizes[place]), generator=generator) for sizes in INTEGER_SIZES] for place in (0, 1)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("rows", ROWS)
def test_integers_are_multiplied_exactly(rows: int, integers: tuple[nn.Module, Callable[..., Any]]) -> None:
    module, code = integers
    given = inputs(rows)
    for x in given[0]:
        x[0, 0] = 0  # a row without a largest number
        x[0, -1] = x[0, -1].abs() * 1e3  # and bytes at their largest, all of one sign
    for one, other in zip(code([x for part in given for x in part]), module(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_integers_of_what_is_not_finite_show_it(wrong: float, integers: tuple[nn.Module, Callable[..., Any]]) -> None:
    given = inputs(7)
    for x in given[0]:
        x[0, 3, 1] = wrong
    for made in integers[1]([x for part in given for x in part]):
        assert torch.isfinite(made[0]).all(1).tolist() == [row != 3 for row in range(7)]


def test_the_definition_answers_as_float64() -> None:
    x, residual, weight = torch.randn(2, 5, 6), torch.randn(2, 5, 10), torch.randn(10, 6)
    bias, scale, shift = torch.randn(3, 10)
    for place, kind in enumerate(dense.ACTIVATIONS):
        tiles = dense.pack_tiles(weight, dense.Tiles(dense.COLUMNS))
        got = dense.LINEAR_DENSE(x, tiles, None, bias, residual, scale, shift, 10, place, True, 1e-5)
        known = {"none": lambda y: y, "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh")}
        activation = known.get(kind) or getattr(functional, kind)
        wanted = activation(functional.linear(x.double(), weight.double(), bias.double())) + residual
        wanted = functional.layer_norm(wanted, (10,), scale.double(), shift.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("laid", LAID)
def test_tiles_unpack_to_the_weight(laid: str) -> None:
    dtype, tiles, _ = LAID[laid]
    weight = torch.randn(70, 6).to(dtype)
    torch.testing.assert_close(dense.unpack_tiles(dense.pack_tiles(weight, tiles))[:70], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("capability", "bfloat16", "wanted"),
    [
        ("AVX512", True, (dense.Tiles(64), dense.Tiles(64, 2), dense.Tiles(32, 4))),
        ("AVX512", False, (dense.Tiles(64), dense.Tiles(64), dense.Tiles(32, 4))),
        ("AVX2", False, (dense.Tiles(16), dense.Tiles(16), dense.Tiles(16, 4))),
        ("DEFAULT", False, (None, None, None)),
    ],
)
def test_weights_lie_as_the_processor_multiplies_them_fastest(
    capability: str, bfloat16: bool, wanted: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert tuple(map(dense.tiles_of, (torch.float32, torch.bfloat16, torch.int8))) == wanted
    assert dense.tiles_of(torch.float16) is None


def test_what_follows_a_layer_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "tiles_of", lambda _: dense.Tiles(dense.COLUMNS))
    left = called(dense.use_dense(exported(torch.float32)))
    assert left.count("headrace.linear_dense.default") == 9 * len(SIZES)
    # Of what is read twice the sum and the norm stay, and nothing else does.
    assert left.count("aten.layer_norm.default") == left.count("aten.add.Tensor") == len(SIZES)
    assert not [name for name in left if "linear.default" in name or "elu" in name]


def test_layers_stay_where_the_processor_has_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "tiles_of", lambda _: None)
    assert "headrace.linear_dense.default" not in called(dense.use_dense(exported(torch.float32)))
