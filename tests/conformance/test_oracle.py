"""The oracle itself: it attends by plain products on every target, which contract D4 asks for on ROCm."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance import oracle
from tests.tiny import build


def test_the_oracle_attends_eagerly() -> None:
    """Whatever the model was made with; and the caller's model is left as it was."""
    model: Any = build("bert")
    model.config._attn_implementation = "sdpa"
    seen = list[str]()

    def read(output: Any) -> Any:
        return output.last_hidden_state

    def watch(module: Any, _args: Any) -> None:
        seen.append(module.config._attn_implementation)

    model.register_forward_pre_hook(watch)  # copied with the model
    oracle.answers(model, [[5, 6, 7]], read, torch.float32)
    assert seen == ["eager"]
    assert model.config._attn_implementation == "sdpa"
