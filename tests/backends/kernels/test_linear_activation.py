"""Linear layers with their activation in one kernel: found where they are, and right to float32's rounding."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace import graphs
from headrace.backends.kernels.linear_activation.match import LINEAR_ACTIVATED, FuseLinearActivation, activations
from headrace.backends.kernels.linear_activation.op import FEW, KINDS
from headrace.backends.kernels.tuning import PRODUCTS
from tests.backends.kernels.test_attention import run_interpreted

ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
}
ROWS = torch.export.Dim("rows", min=2)


class Layer(nn.Module):
    """A layer whose form a test chooses."""

    def __init__(self, form: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(16, width), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.linear(x))


def exported(form: Callable[[Tensor], Any], dtype: torch.dtype = torch.bfloat16, width: int = 32) -> Any:
    sample = (torch.randn(1, 5, 16, dtype=dtype),)
    made = torch.export.export(Layer(form, width).to(dtype), sample, dynamic_shapes=({1: ROWS},))
    return made.run_decompositions({})


def sliced(y: Tensor) -> Tensor:
    return functional.silu(y[..., :16]) * y[..., 16:]


def late(y: Tensor) -> Tensor:
    early, last = y.chunk(2, -1)
    return early * functional.gelu(last, approximate="tanh")


def split(y: Tensor) -> Tensor:
    first, gate = y.split(16, dim=-1)
    return functional.gelu(first) * gate


@pytest.mark.parametrize(("form", "kind", "gated", "is_late"), [
    (functional.gelu, "gelu", False, False), (functional.relu, "relu", False, False),
    (sliced, "silu", True, False), (late, "gelu_tanh", True, True), (split, "gelu", True, False),
])  # fmt: skip
def test_found(form: Any, kind: str, gated: bool, is_late: bool) -> None:
    program = exported(form)
    ((_, _, *found),) = activations(program.graph)
    assert found == [kind, gated, is_late]
    made = graphs.rewrite(program, FuseLinearActivation("sm90"))
    (node,) = (node for node in made.graph.nodes if node.target is LINEAR_ACTIVATED)
    (old,) = program.graph.output_node().args[0]
    assert node.meta["val"].shape == old.meta["val"].shape
    assert node.meta["val"].dtype == old.meta["val"].dtype


def read_twice(y: Tensor) -> Tensor:
    return functional.gelu(y) + y


def gated_by_itself(y: Tensor) -> Tensor:
    return functional.silu(y[..., :16]) * y[..., :16]


def thirds(y: Tensor) -> Tensor:
    first, gate, _ = y.split((8, 8, 16), dim=-1)
    return functional.silu(first) * gate


def along_rows(y: Tensor) -> Tensor:
    return functional.silu(y.reshape(-1, 2, 32).chunk(2, 1)[0])


@pytest.mark.parametrize("form", [read_twice, gated_by_itself, thirds, along_rows])
def test_left_alone(form: Any) -> None:
    assert not list(activations(exported(form, width=64 if form is along_rows else 32).graph))


def test_what_the_copy_engine_cannot_read_is_left_alone() -> None:
    assert not list(activations(exported(functional.gelu, torch.float32).graph))
    assert not list(activations(exported(functional.gelu, width=20).graph))


class Case(NamedTuple):
    """A layer with its activation, and where the activated half is."""

    kind: str
    gated: bool = False
    late: bool = False

    def of(self, y: Tensor) -> Tensor:
        """The formula, in `y`'s dtype."""
        if not self.gated:
            return ACTS[self.kind](y)
        halves = y.chunk(2, -1)
        return ACTS[self.kind](halves[self.late]) * halves[not self.late]


CASES = [Case(kind, *gate) for kind in KINDS for gate in ((False, False), (True, False), (True, True))]


def check(device: str, rows: tuple[int, ...], kinds: tuple[str, ...] = KINDS) -> None:
    """Both launches against float64: within twice the error of float32 arithmetic that is rounded to the dtype."""
    from headrace.backends.kernels.linear_activation.op import activated, multiplied

    generator = torch.Generator().manual_seed(0)
    cases = [case for case in CASES if case.kind in kinds]
    for case, dtype, count in itertools.product(cases, (torch.bfloat16, torch.float16), rows):
        for depth, columns, biased in ((40, 72, True), (128, 136, False)):
            width = columns * (1 + case.gated)
            shapes = ((count, depth), (width, depth), (width,))
            x, weight, bias = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
            given = (x, weight, bias) if biased else (x, weight)
            within(case, [operand.double() for operand in given], dtype,
                   multiplied(x, weight, bias if biased else None, *case, PRODUCTS["sm90"]))  # fmt: skip
            # By itself, the activation reads a product that is rounded already.
            y = functional.linear(*given)
            within(case, [y.double()], dtype, activated(y, *case))


def within(case: Case, operands: list[Tensor], dtype: torch.dtype, found: Tensor) -> None:
    """Hold a result against the formula in float64 and in float32: of a product, or of a layer's operands."""
    product = functional.linear if len(operands) > 1 else lambda y: y
    exact = case.of(product(*operands))
    own = rms(case.of(product(*(operand.float() for operand in operands))).to(dtype).double() - exact)
    assert found.dtype == dtype
    assert found.shape == exact.shape
    assert rms(found.double() - exact) <= 2 * own + 1e-8, (case, dtype, found.shape)


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
def test_under_the_interpreter() -> None:
    run_interpreted(
        "patch_interpreter(); from tests.backends.kernels.test_linear_activation import check; check('cpu', (3, 130))"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_the_gpu(kind: str) -> None:
    check("cuda", (1, 64, 200, 5000), (kind,))


@pytest.mark.gpu
def test_either_way_by_the_number_of_rows() -> None:
    """The operator itself, of a batch of one as programs have it."""
    shapes = ((1, FEW + 1000, 64), (256, 64), (256,))
    x, weight, bias = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    case = Case("silu", gated=True)
    for rows in (FEW + 1000, 100):
        found = torch.ops.headrace.linear_activated(x[:, :rows], weight, bias, *case, "sm90")
        wanted = case.of(functional.linear(x[:, :rows].double(), weight.double(), bias.double()))
        torch.testing.assert_close(found.double(), wanted, atol=0.15, rtol=2e-2)
