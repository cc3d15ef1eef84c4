"""Models whose attention is odd in one way each: the whole program as text, its route and its tasks."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from headrace.frontend.trace import trace
from headrace.ir import AttentionType, State
from headrace.lowering.pipeline import analyse
from tests.tiny import build, checkpoint

DECODER, ENCODER_ONLY = AttentionType.DECODER, AttentionType.ENCODER_ONLY


class Mixed(nn.Module):
    """A user's own module: a causal layer, then a bidirectional one over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = build("bert-decoder", num_hidden_layers=1)
        self.second = build("bert", num_hidden_layers=1)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        rows = self.first(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        return self.second(inputs_embeds=rows, attention_mask=attention_mask)


class Bag(nn.Module):
    """Words without any attention: each row is a function of its own token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(96, 32), nn.Linear(32, 32)

    def forward(self, input_ids: Any) -> Any:
        return self.layer(self.table(input_ids).tanh())


# name: (how it is built, the types in call order, route, rule, tasks)
ODD = {
    "shared layers": (lambda: build("albert"), [ENCODER_ONLY] * 2, State.ENCODER_ONLY, "B3", ["embed", "token_embed"]),
    "latent keys and values": (lambda: build("deepseek-v3"), [DECODER] * 2, State.DECODER, "B5", ["embed"]),
    "attention in some layers": (lambda: build("lfm2"), [DECODER], State.HYBRID, "B4", ["embed"]),
    "windows in some layers": (
        lambda: build("gemma3-bidirectional"),
        [ENCODER_ONLY] * 2,
        State.ENCODER_ONLY,
        "B3",
        ["embed", "token_embed"],
    ),
    "types that differ by layer": (Mixed, [DECODER, ENCODER_ONLY], State.ENCODER_ONLY, "B3", ["embed", "token_embed"]),
    # SigLIP pools by one query that no image changes, in torch's own MultiheadAttention.
    "latent queries": (
        lambda: build("siglip-vision"),
        [ENCODER_ONLY] * 3,
        State.ENCODER_ONLY,
        "B3",
        ["embed", "token_embed"],
    ),
    "mixing without attention": (lambda: build("fnet"), [], State.HYBRID, "B4", ["embed"]),
    "no mixing at all": (Bag, [], State.HYBRID, "B4", ["embed"]),
}


@pytest.mark.parametrize("name", ODD)
def test_oddity(name: str, golden: Any) -> None:
    """Each is typed, routed and given its tasks like anything else."""
    make, types, state, rule, tasks = ODD[name]
    made = trace(checkpoint(make()))
    program = analyse(made.program, made.behaviour)
    golden(f"oddities/{name.replace(' ', '-')}", program.as_text())
    assert [spec.type for spec in program.nodes.attention] == types
    assert (program.decision.route.state, program.decision.route.rule) == (state, rule)
    assert [decision.task for decision in program.decision.tasks if decision.supported] == tasks


def test_head_dims_of_keys_and_values_differ() -> None:
    """MLA: what is compared is wider than what is summed."""
    made = trace(checkpoint(build("deepseek-v3")))
    (first, *_) = analyse(made.program, made.behaviour).nodes.attention
    assert (first.qk_head_dim, first.v_head_dim) == (16, 12)


def test_only_the_query_that_no_input_changes_is_latent() -> None:
    """Contract A2."""
    made = trace(checkpoint(build("siglip-vision")))
    program = analyse(made.program, made.behaviour)
    assert [spec.latent for spec in program.nodes.attention] == [False, False, True]
    assert [spec.recovered for spec in program.nodes.attention] == [False, False, True]
