"""`headrace probe`'s table on models that it must tell apart; what the command does with it is in test_cli."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.tools.cli.commands.probe_report import report


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fnet", ["no attention"]),
        ("mistral-long-window", ["(4095, 0)", "proven with the window shrunk", "bit-equal"]),
        ("gemma3-bidirectional", ["ENCODER_ONLY", "declared not causal"]),
        ("mamba", ["no attention", "selective_scan", "back only", "declared causal", "bit-equal"]),
        ("jamba", ["DECODER", "selective_scan", "back only", "declared causal"]),
    ],
)
def test_report(traced: Any, name: str, words: list[str]) -> None:
    made = traced(name)
    found = report(made.program, made.behaviour)
    assert found.agrees
    for word in words:
        assert word in found.text


def test_a_stack_that_behaves_unlike_its_types(traced: Any) -> None:
    class Leaking:
        """The same model, but for a last token that leaks into the rows before it."""

        def __init__(self, true: Any) -> None:
            self.reach, self.shrunk = true.reach, true.shrunk

        def stack_change(self, length: int) -> float:
            return 0.25

    made = traced("qwen3")
    found = report(made.program, Leaking(made.behaviour))
    assert not found.agrees
    assert "declared causal: a new last token changed the rows before it by 2.5e-01" in " ".join(found.text.split())
