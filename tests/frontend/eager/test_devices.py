"""A module that does not lie in the host's memory: copied there, or refused in words; the user's stays as it was."""

from typing import Any

import pytest
import torch
from torch import nn

import headrace
from headrace.errors import LoadError
from headrace.frontend.eager.devices import copied_to, on_host
from headrace.frontend.load.checkpoint import load
from tests.tiny import build, token_ids


class Elsewhere(nn.Parameter):
    """A weight that says that it lies on another device, as none is here."""

    device = torch.device("cuda:0")


class OnAnother(Elsewhere):
    device = torch.device("cuda:1")


def moved(model, kind=Elsewhere, other=Elsewhere):
    """The model with its weights on a device that is not there, all but the first on `other`."""
    for inner in model.modules():
        for name, weight in list(inner.named_parameters(recurse=False)):
            setattr(inner, name, kind(weight.data, weight.requires_grad))
            kind = other
    return model


def test_a_module_on_a_device_is_copied_to_the_host():
    model = moved(build("bert", num_hidden_layers=1))
    weights = list(model.parameters())
    checkpoint = load(model, dtype=torch.float32)
    assert {type(weight) for weight in checkpoint.module.parameters()} == {nn.Parameter}
    assert {weight.device.type for weight in checkpoint.module.parameters()} == {"cpu"}
    assert all(one is other for one, other in zip(weights, model.parameters(), strict=True))


def test_a_module_on_the_host_is_not_copied():
    model = build("bert", num_hidden_layers=1)
    assert on_host(model) is model


def test_a_module_over_two_devices_is_refused():
    model = moved(build("bert", num_hidden_layers=1), Elsewhere, OnAnother)
    with pytest.raises(LoadError, match=r"spread over devices \(cuda:0, cuda:1\).*load it without device_map"):
        headrace.trace(model)
    model = moved(build("bert", num_hidden_layers=1))
    model._hf_hook = object()
    with pytest.raises(LoadError, match=r"spread over devices \(cuda:0\)"):
        headrace.trace(model)


def test_a_module_without_values_is_refused():
    model = build("bert", num_hidden_layers=1)
    model.register_buffer("late", torch.ones(1, device="meta"))
    with pytest.raises(LoadError, match="late is on the meta device, without values"):
        headrace.trace(model)
    with pytest.raises(LoadError, match="on the meta device, without values"):
        headrace.trace(build("bert", num_hidden_layers=1).to("meta"))


class Holder(nn.Module):
    """Tensors in every place where a module can hold one."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2)
        self.other.weight = self.one.weight
        self.register_buffer("kept", torch.ones(2))
        self.plain, self.listed, self.named = torch.ones(2), [torch.ones(2)], {"a": (torch.ones(2), self.kept)}


def test_every_tensor_is_copied_and_what_is_shared_stays_so():
    holder = Holder()
    copied: Any = copied_to(holder, torch.device("meta"))
    tensors = [copied.one.weight, copied.kept, copied.plain, *copied.listed, *copied.named["a"]]
    assert all(one.is_meta for one in tensors)
    assert copied.one.weight is copied.other.weight
    assert copied.named["a"][1] is copied.kept
    assert not any(one.is_meta for one in (holder.one.weight, holder.kept, holder.plain, *holder.listed))


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["reference", "auto"])
def test_a_module_on_a_gpu_is_compiled(target):
    host = build("llama", num_hidden_layers=1)
    model = build("llama", num_hidden_layers=1).cuda()
    ids = token_ids(9)
    with torch.no_grad():
        expected = host(ids).last_hidden_state.mean(1)
    vectors = headrace.compile(model, target=target, pooling="mean", dtype="float32")(ids.tolist())
    assert (torch.tensor(vectors[0]) - expected[0]).abs().max() <= 1e-4
    assert {weight.device.type for weight in model.parameters()} == {"cuda"}
