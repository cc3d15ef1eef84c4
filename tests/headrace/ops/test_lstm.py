"""The LSTM operator against torch's own module on packed sequences, wherever padding lies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headrace.ops.lstm import LSTM
from tests.recurrences import difference, lstm_operands, widened

LENGTHS = (1, 2, 7, 40)


def torchs(x: Tensor, padding: Tensor, w: Tensor, r: Tensor, bias: Tensor) -> Tensor:
    """Each text's real rows alone through `nn.LSTM`; zeros at padding."""
    module = nn.LSTM(x.shape[2], r.shape[2], batch_first=True, bidirectional=len(w) == 2, dtype=x.dtype)
    held: dict[str, Tensor] = {}
    for side, name in enumerate(("", "_reverse")[: len(w)]):
        held |= {f"weight_ih_l0{name}": w[side], f"weight_hh_l0{name}": r[side], f"bias_ih_l0{name}": bias[side]}
        held[f"bias_hh_l0{name}"] = torch.zeros_like(bias[side])
    module.load_state_dict(held)
    out = x.new_zeros((*x.shape[:2], len(w) * r.shape[2]))
    with torch.no_grad():
        for row, real in enumerate(padding.bool()):
            if real.any():
                out[row, real] = module(x[row, real][None])[0][0]
    return out


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("directions", [1, 2])
def test_is_torchs_module_on_each_text_alone(length: int, directions: int) -> None:
    x, padding, *weights = lstm_operands(length)
    weights = [part[:directions] for part in weights]
    got = LSTM(x, padding, *weights)
    assert difference(got, torchs(x, padding, *weights)) < 1e-12
    assert not got[~padding.bool()].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_state_is_kept_wide(dtype: torch.dtype) -> None:
    """In half precision an answer is no further from float64 than its own format makes it."""
    given = lstm_operands(40, dtype)
    got = LSTM(*given)
    assert got.dtype == dtype
    exact = LSTM(*widened(given))
    assert difference(got, exact) <= torch.finfo(dtype).eps * 4


def test_what_lies_at_padding_is_not_read() -> None:
    x, padding, *weights = lstm_operands(9)
    other = torch.where(padding.bool()[..., None], x, 1e3)
    assert torch.equal(LSTM(x, padding, *weights), LSTM(other, padding, *weights))
    if_read = LSTM(other, torch.ones_like(padding), *weights)
    assert not torch.equal(if_read[1], LSTM(x, torch.ones_like(padding), *weights)[1])
