"""The recurrent operators in blocks against their definitions, around the ends of a block and far past them."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.backends.inductor import recurrent
from headrace.backends.inductor.compile import DECOMPOSITIONS
from headrace.ops import linear_recurrence
from headrace.ops import recurrent as ops
from headrace.ops.lstm import LSTM
from tests import recurrences as cases

FORMS = {
    "convolution": (ops.CAUSAL_CONV1D, cases.convolution_operands),
    "selective": (ops.SELECTIVE_SCAN, cases.scan_operands),
    "chunk": (ops.CHUNK_SCAN, cases.chunk_operands),
    "delta": (ops.GATED_DELTA_RULE, cases.delta_operands),
    "delta a channel": (ops.GATED_DELTA_RULE, cases.kimi_operands),
    "linear": (linear_recurrence.LINEAR_RECURRENCE, cases.linear_operands),
    "wkv": (linear_recurrence.WKV, cases.wkv_operands),
    "mlstm": (linear_recurrence.MLSTM, cases.mlstm_operands),
    "lstm": (LSTM, cases.lstm_operands),
}
forms = pytest.mark.parametrize(("operator", "operands"), FORMS.values(), ids=FORMS.keys())


@forms
@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 33, 63, 64, 65, 200])
def test_means_what_the_definition_means(operator, operands, length):
    given = operands(length)
    assert cases.difference(recurrent.DECOMPOSITIONS[operator](*given), operator(*given)) < 1e-12


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_exact_as_the_definition(operator, operands, dtype):
    given = operands(130, dtype)
    exact = operator(*cases.widened(given))
    got, defined = recurrent.DECOMPOSITIONS[operator](*given), operator(*given)
    assert (got.dtype, got.shape) == (defined.dtype, defined.shape)
    assert cases.difference(got, exact) <= 2 * cases.difference(defined, exact) + 1e-6


EXTREMES = [name for name in FORMS if name not in ("convolution", "wkv", "linear", "lstm")]


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_decays_stay_finite(name):
    """Steps that forget all, and steps that forget nothing after them: a sum of logs must not eat the small ones."""
    operator, operands = FORMS[name]
    given = [x.clone() if isinstance(x, torch.Tensor) else x for x in operands(130, torch.float32)]
    if operator is ops.GATED_DELTA_RULE:
        given[3][:, ::7], given[3][:, 1::7] = -1e4, -1e-5
    elif operator is linear_recurrence.MLSTM:
        given[4][..., ::7], given[4][..., 1::7] = -1e4, 12.0
    else:
        steps = given[1] if operator is ops.SELECTIVE_SCAN else given[1].transpose(1, 2)
        steps[..., ::7], steps[..., 1::7] = 1e3, -12.0
        given = [*given[:8], None, None] if operator is ops.CHUNK_SCAN else given
    exact = operator(*cases.widened(given))
    got = recurrent.DECOMPOSITIONS[operator](*given)
    assert torch.isfinite(got).all()
    assert cases.difference(got, exact) < 5e-6


def test_operands_are_left_as_they_were():
    """Forms that work in place do so on copies, also where a batch of one could be read without any."""
    x, decay = (operand[:1] for operand in cases.linear_operands(9, torch.float32))
    before = x.clone()
    recurrent.DECOMPOSITIONS[linear_recurrence.LINEAR_RECURRENCE](x, decay)
    assert torch.equal(x, before)


def test_unbounded_steps():
    given = (*cases.chunk_operands(70)[:8], None, None)
    wide = (*given[:8], 0.0, math.inf)
    assert torch.equal(recurrent.chunk_scan_blocks(*given), recurrent.chunk_scan_blocks(*wide))


def named(length: int) -> dict[str, object]:
    """The operands of every operator, by its name and their place."""
    return {
        f"{name} {place}": operand
        for name, (_, make) in FORMS.items()
        for place, operand in enumerate(make(length, torch.float32))
    }


def tensors(length: int) -> dict[str, torch.Tensor]:
    return {name: operand for name, operand in named(length).items() if isinstance(operand, torch.Tensor)}


class Everything(torch.nn.Module):
    """Each operator once, on operands that share nothing but their length."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = named(1)

    def forward(self, operands: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        given = self.plain | operands
        return [
            run(*(operand for key, operand in given.items() if key.rpartition(" ")[0] == name))
            for name, (run, _) in FORMS.items()
        ]


def test_one_compiled_graph_serves_every_length(tmp_path):
    """Ahead of time, with a symbolic length: from one token on, far past the traced one, and one again."""
    sample = tensors(7)
    sizes = {name: {i: torch.export.Dim("length", min=1) for i, n in enumerate(x.shape) if n == 7}
             for name, x in sample.items()}  # fmt: skip
    exported = torch.export.export(Everything(), (sample,), dynamic_shapes=(sizes,))
    lowered = exported.run_decompositions({}).run_decompositions(DECOMPOSITIONS)
    torch._inductor.aoti_compile_and_package(lowered, package_path=str(tmp_path / "all.pt2"))
    compiled = torch._inductor.aoti_load_package(str(tmp_path / "all.pt2"))
    for length in (1, 130, 64, 1):
        given = tensors(length)
        for got, wanted in zip(compiled(given), Everything()(given), strict=True):
            assert cases.difference(got, wanted) < 5e-6
