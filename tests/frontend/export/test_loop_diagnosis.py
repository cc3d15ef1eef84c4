"""What fixes a model's length is named: the function that loops over the tokens."""

import pytest
import torch
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.export.loop_diagnosis import looping
from headrace.frontend.trace import trace
from tests.tiny import build, checkpoint


def summed_slowly(rows):
    total, seen = torch.zeros_like(rows[:, 0]), []
    for t in range(rows.shape[1]):
        total = torch.tanh(total + rows[:, t])
        seen.append(total)
    return torch.stack(seen, 1)


class Looping(nn.Module):
    """A user's recurrence, written as a loop, over a model that loops nowhere."""

    def __init__(self):
        super().__init__()
        self.inner = build("bert", num_hidden_layers=1)

    def forward(self, input_ids, attention_mask):
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        output.last_hidden_state = summed_slowly(output.last_hidden_state)
        return output


def test_the_loop_is_named():
    with pytest.raises(TraceError) as refused:
        trace(checkpoint(Looping()))
    text = str(refused.value)
    assert "summed_slowly in test_loop_diagnosis.py loops over the tokens, which fixes their number" in text
    assert "mamba_selective_scan" in text
    assert "torch.export says" in text


def test_no_loop_is_invented():
    assert looping(lambda length: torch.ones(length).sum()) is None


def test_the_loop_is_named_where_a_function_of_torch_is_between():
    def run(length):
        for _ in range(length):
            nn.functional.gelu(nn.functional.layer_norm(torch.ones(2, 4), (4,)))

    name = "test_the_loop_is_named_where_a_function_of_torch_is_between.<locals>.run"
    assert looping(run) == (name, "test_loop_diagnosis.py")
