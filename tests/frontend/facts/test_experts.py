"""Routed experts are told by tokens that are put together, not by a choice: a coincidence would loosen the probe."""

import pytest
import torch
from torch import nn

from headrace.frontend.trace import trace
from tests.tiny import build, checkpoint


class Choosing(nn.Module):
    """Chooses something of each token, over a small model; `choose` takes and returns rows [B, S, W]."""

    def __init__(self, choose):
        super().__init__()
        self.inner, self.choose = build("llama", num_hidden_layers=1), choose
        self.table = nn.Parameter(torch.randn(32, 32))

    def forward(self, input_ids, attention_mask):
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        output.last_hidden_state = self.choose(self, output.last_hidden_state)
        return output


def winners(_model, rows):
    """All but the highest values of a row are left out."""
    return torch.where(rows >= rows.topk(4, -1).values[..., -1:], rows, 0.0)


def sorted_values(_model, rows):
    return rows.sort(-1).values


def weights(model, rows):
    """Each token takes rows of a weight, which leaves it where it is."""
    return rows + model.table[rows.topk(2, -1).indices].sum(-2)


def experts(model, rows):
    """Tokens in the order of the expert that they chose, multiplied, and put back."""
    flat = rows.flatten(0, 1)
    order = (flat @ model.table).argmax(-1).sort().indices
    return (flat[order] @ model.table)[order.argsort()].unflatten(0, rows.shape[:2])


@pytest.mark.parametrize(
    ("choose", "routed"), [(winners, False), (sorted_values, False), (weights, False), (experts, True)]
)
def test_a_choice_alone_routes_nothing(choose, routed):
    assert trace(checkpoint(Choosing(choose).eval())).program.evidence.routed_experts is routed
