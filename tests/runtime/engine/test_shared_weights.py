"""One copy of a model's weights, however many outputs of it are compiled."""

from __future__ import annotations

import gc
from typing import Any

import torch

import headrace
from headrace import graphs
from headrace.backends.gpu import device
from headrace.backends.reference import Reference
from headrace.ir import Layout, Task
from headrace.lowering.pipeline import prepare

MERGES = "merged_"


def places(lane: Any) -> dict[str, int]:
    """Where each weight of a lane lies."""
    return {name: weight.data_ptr() for name, weight in lane.program.graph.state_dict.items()}


def require_shared(one: Any, other: Any) -> set[str]:
    """The weights that two lanes have in common lie in one place each."""
    mine, theirs = places(one), places(other)
    common = mine.keys() & theirs.keys()
    assert {name: mine[name] for name in common} == {name: theirs[name] for name in common}
    return common


def test_lanes_of_a_padded_model_share_their_weights(tiny: Any) -> None:
    """And with the user's own module, whose weights are only borrowed."""
    module = tiny("bert", "AutoModel")
    model = headrace.compile(module, target="reference", pooling="mean")
    common = require_shared(model.engine.lane("embed"), model.engine.lane("token_embed"))
    own = {weight.data_ptr() for weight in module.parameters()}
    assert len(common) > 20
    assert own.issuperset(places(model.engine.lane("embed")).values())


def test_vectors_and_texts_of_one_model_share_their_weights(tiny: Any) -> None:
    """Packed rows and cached steps merge the same layers, and share what that makes."""
    lowered = headrace.lower(tiny("llama", "AutoModelForCausalLM"), target="reference", pooling="last")
    lowered.backend = Reference(Layout.PACKED)
    model = lowered.compile(task="embed")
    model.generate([[5, 6, 7]], max_new_tokens=2)
    vectors, texts = model.engine.lane("embed"), model.engine.lane("generate")
    assert (vectors.program.form.layout, texts.program.form.layout) == (Layout.PACKED, Layout.CACHED)
    common = require_shared(vectors, texts)
    assert sum(name.startswith(MERGES) and name.endswith("weight") for name in common) >= 4


def test_programs_on_a_device_share_their_weights(analysed: Any, monkeypatch: Any) -> None:
    """With the host for the device, of which weights are copies: two programs of one model hold the same ones."""
    monkeypatch.setitem(device.MOVED, device.HOST, graphs.Derived(torch.Tensor.clone))
    program = analysed("bert", "AutoModel")
    one, other = (device.on_host(prepare(program, task).graph) for task in (Task.EMBED, Task.TOKEN_EMBED))
    names = one.state_dict.keys() & other.state_dict.keys()
    assert len(names) > 20
    for name in names:
        assert one.state_dict[name] is other.state_dict[name]
        assert one.state_dict[name].data_ptr() != program.graph.state_dict[name].data_ptr()


def test_what_is_made_of_weights_is_made_anew_where_they_changed() -> None:
    made = graphs.Derived(lambda *parts: torch.cat(parts))
    one, other = torch.ones(2, 3), torch.zeros(1, 3)
    first = made(one, other)
    assert made(one, other) is first
    assert made(other, one) is not first
    one.mul_(2)
    second = made(one, other)
    assert second is not first
    assert second[0, 0] == 2
    del first, second
    gc.collect()
    assert made(one, other)[0, 0] == 2
