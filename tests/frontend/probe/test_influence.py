"""What a module's softmaxes give weight to: each of several attentions by itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.frontend.probe.influence import measured, weighed

LENGTH, KEYS = 9, (0, 3, 8)


class Two(nn.Module):
    """A causal attention of a head and one with a window of three, over keys that a convolution made."""

    def forward(self, rows: Tensor, cache: object = None) -> Tensor:
        keys = rows + rows.roll(1, 1) * (torch.arange(LENGTH) > 0)[None, :, None]
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]
        made = [
            (rows @ keys.transpose(1, 2)).masked_fill(~seen, float("-inf")).softmax(-1) @ rows
            for seen in (distance >= 0, (distance >= 0) & (distance < 3))
        ]
        router = rows.softmax(-1)  # over no keys
        return made[0] + made[1] + 0 * router


def test_each_attention_by_its_own_weights() -> None:
    rows = torch.randn(1, LENGTH, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    causal, window = weighed(Two(), {0: rows}, LENGTH, KEYS)
    assert causal == {0: frozenset(range(9)), 3: frozenset(range(3, 9)), 8: frozenset({8})}
    assert window == {0: frozenset({0, 1, 2}), 3: frozenset({3, 4, 5}), 8: frozenset({8})}


def test_a_module_that_cannot_run_alone_says_nothing() -> None:
    assert weighed(Two(), {0: torch.ones(1, LENGTH + 1, 4)}, LENGTH, KEYS) == []


def test_rounding_alone_reaches_nothing() -> None:
    """Routed experts regroup tokens, which changes the order of sums; what a key does is far above that."""

    class Regrouped(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows + 1e-15 * rows.sum()

    rows = torch.randn(1, LENGTH, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, rounded = (measured(Regrouped(), {0: rows}, LENGTH, KEYS, allowed=ulps) for ulps in (0.0, 64.0))
    assert exact is not None
    assert max(map(len, exact.values())) > 1
    assert rounded == {key: frozenset({key}) for key in KEYS}
