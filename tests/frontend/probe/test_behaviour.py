"""The copy in float64 that the probe runs."""

import copy

import torch
from torch import nn

from headrace.frontend.probe.behaviour import in_float64
from tests.tiny import build


def test_a_copy_in_float64_is_what_a_cast_copy_is() -> None:
    model = build("bert", "AutoModelForMaskedLM")
    wide, cast = in_float64(model), copy.deepcopy(model).double()
    assert wide.state_dict().keys() == cast.state_dict().keys()
    for name, value in cast.state_dict().items():
        found = wide.state_dict()[name]
        assert found.dtype == value.dtype, name
        assert torch.equal(found, value), name
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in wide.parameters()}


def test_a_shared_weight_stays_shared() -> None:
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = first.weight
    wide = in_float64(model)
    assert wide[1].weight is wide[0].weight
    assert wide[1].bias is not wide[0].bias
    assert wide[2].running_mean.dtype is torch.float64
    assert wide[2].num_batches_tracked.dtype is torch.int64
