"""One eager model: what a run showed is not asked again, and what a batch does not show is asked of one text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from headrace.frontend.capture.attention import evaluating
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.run import look
from headrace.frontend.facts.positions import with_defaults
from headrace.frontend.trace import trace
from tests.tiny import build, checkpoint


# A first look, a run with what the model takes by itself, and of a vector of its own one with padding; then the trace.
@pytest.mark.parametrize(("name", "runs"), [("bert", 4), ("llama", 3), ("roberta", 7)])
def test_how_often_the_model_runs(name: str, runs: int) -> None:
    module, seen = build(name, "AutoModel"), list[Any]()
    with_hook = module.register_forward_hook(lambda _module, _args, output: seen.append(output))
    trace(checkpoint(module))
    with_hook.remove()
    assert len(seen) == runs


class Scaled(nn.Module):
    """A model whose rows depend on how many rows of positions it is given: those that it makes itself are one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("bert", "AutoModel")
        self.config = self.inner.config

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> Any:
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=places)
        output.last_hidden_state = output.last_hidden_state * (1 + 1e-6 * len(places))
        return output


def test_what_rounds_otherwise_in_a_batch_is_told_of_one_text() -> None:
    module = Scaled().eval()
    with evaluating(module):
        model = with_defaults(look(EagerModel.of(module, module.config)))
    assert model.offset == 0
    assert "position_ids" in model.signature.inputs
