"""The copy in float64 that the probe runs."""

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from headrace.frontend.eager.float64 import in_float64
from headrace.frontend.trace import trace
from headrace.ir import Verdict
from headrace.lowering.pipeline import analyse
from tests.tiny import build, checkpoint


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


class Chunked(nn.Module):
    """A module around a model whose own configuration names, by chance, the number that is the model's window."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(chunk=4096, seen=4097)
        self.inner = build("mistral", sliding_window=4096, num_hidden_layers=1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        if self.config.chunk % 4096:
            raise ValueError("a chunk of 4096 is what was trained")
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


def test_the_window_is_found_by_what_follows_it_and_not_by_its_number() -> None:
    module = Chunked().eval()
    made = trace(checkpoint(module))
    assert [spec.verdict for spec in analyse(made.program, made.behaviour).nodes.attention] == [Verdict.PROVEN_SHRUNK]
    assert vars(module.config) == {"chunk": 4096, "seen": 4097}
    assert module.inner.config.sliding_window == 4096


def test_modules_that_differ_in_more_than_weights_and_number_look_different() -> None:
    behaviour = trace(checkpoint(build("llama", num_hidden_layers=7))).behaviour
    places = (None,) * 7
    layers = [layer.self_attn for layer in behaviour._double.layers]
    assert len(set(behaviour.looks(places))) == 1
    layers[1].is_causal = False
    layers[2].q_proj.bias = nn.Parameter(torch.zeros(layers[2].q_proj.out_features))
    layers[3].forward = layers[3].forward
    layers[4].o_proj.register_forward_hook(lambda *_: None)
    layers[5].register_buffer("hidden", torch.ones(2, dtype=torch.bool))
    layers[6].register_buffer("hidden", torch.zeros(2, dtype=torch.bool))
    assert len(set(behaviour.looks(places))) == 7
