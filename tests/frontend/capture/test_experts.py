"""Experts whose own code loops over those that were chosen, run by grouped products in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.frontend.capture.attention import capture
from tests.coverage.configs import tiny_model
from tests.tiny import randomise, token_ids

ARCHITECTURES = ("dbrx", "jetmoe", "longcat_flash", "openai_privacy_filter")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def eager(request: Any) -> Any:
    return randomise(tiny_model(request.param, "AutoModel"))


@torch.no_grad()
def test_they_answer_as_the_loop_does(eager: Any) -> None:
    ids = token_ids(13, 2)
    wanted = eager(input_ids=ids).last_hidden_state
    with capture(eager):
        made = eager(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-5)


def test_they_loop_over_nothing_that_was_chosen(eager: Any) -> None:
    """Where a size hangs on what tokens chose, no graph does for all texts."""
    with capture(eager), torch.profiler.profile() as profile, torch.no_grad():
        eager(input_ids=token_ids(13, 2), attention_mask=torch.ones(2, 13, dtype=torch.long))
    called = {event.name for event in profile.events()}
    assert "aten::nonzero" not in called


def test_a_model_is_only_borrowed(eager: Any) -> None:
    before = [dict(vars(module)) for module in eager.modules()]
    with capture(eager):
        pass
    assert [vars(module) for module in eager.modules()] == before
