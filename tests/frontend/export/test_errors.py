"""A failed export is said in one line, of the model's own code: nothing of torch's symbols, logs or graphs."""

import logging
import re

import pytest
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.export.errors import _gist
from headrace.frontend.export.exporter import _proven_bounds
from headrace.frontend.export.runtime_asserts import BrokenAssertion, holds_to
from headrace.frontend.export.silence import logs_silenced
from headrace.frontend.trace import trace
from tests.frontend.export.test_runtime_asserts import exported
from tests.tiny import build, checkpoint

SYMBOL = re.compile(r"\b[suz]f?\d+\b|L\['|TORCH_LOGS")


class Deciding(nn.Module):
    """Over a small model; `decide` takes and returns rows [B, S, W]."""

    def __init__(self, decide):
        super().__init__()
        self.inner, self.decide = build("bert", num_hidden_layers=1), decide

    def forward(self, input_ids, attention_mask):
        logging.getLogger("transformers").error("of %s tokens", input_ids.shape[1])
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        output.last_hidden_state = self.decide(output.last_hidden_state)
        return output


def by_values(rows):
    return rows * 2 if rows.sum() > 40 else rows


def by_length(rows):
    return rows * 2 if rows.shape[1] % 2 else rows


def by_number(rows):
    return rows * float(rows.shape[1])


REASONS = [
    (by_values, r"by_values in test_errors.py, line \d+, decides by what a tensor holds, and one graph"),
    (by_length, r"by_length in test_errors.py, line \d+, does for some lengths what it does not for others"),
    (by_number, r"by_number in test_errors.py, line \d+, does for some lengths what it does not for others"),
]


@pytest.mark.parametrize(("decide", "reason"), REASONS)
def test_the_reason_is_the_models_own_code(decide, reason, capfd):
    with pytest.raises(TraceError, match=reason) as refused:
        trace(checkpoint(Deciding(decide).eval()))
    text = str(refused.value)
    assert not SYMBOL.search(text), text
    assert "loops" not in text
    assert "\n" not in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Could not guard on data-dependent expression Eq(u1, 1) (unhinted: Eq(u1, 1)).", ""),
        ("It needs pictures.\nMore of it.", " torch.export says: It needs pictures."),
        (
            "Specializations unexpectedly required (sequence)! For more information, run with TORCH_LOGS='+dynamic'.",
            " torch.export says: the code takes one size of sequence alone",
        ),
        (
            "satisfy the generated guard 2 <= L['decoder_input_ids'].size()[1] and L['input_ids'].size()[1] <= "
            "158Specializations unexpectedly required (target)!",
            " torch.export says: the graph is right only where 2 <= target and sequence <= 158",
        ),
        (
            "satisfy the generated guard 7 <= L['input_ids'].size()[1] and L['input_ids'].size()[1] <= 7",
            " torch.export says: the graph is right only where sequence is 7",
        ),
        ("the generated guard Ne(s70, 2)", ""),
    ],
)
def test_no_symbol_reaches_a_user(message, said):
    assert _gist(ValueError(message)) == said


def test_a_bound_is_what_the_export_proves():
    """Numbers that stand in its message by chance are none."""
    assert _proven_bounds(ValueError("64 of 64, 4096"), {}) == ()
    held = holds_to(exported(False))
    assert held == 64
    assert _proven_bounds(BrokenAssertion("wrong at 65", held), {}) == (65, 64)
    assert holds_to(exported(True)) is None
    assert _proven_bounds(BrokenAssertion("wrong", None), {}) == ()


def test_the_libraries_logs_are_as_they_were(monkeypatch):
    handlers = [*logging.getLogger("transformers").handlers, *logging.getLogger("torch").handlers]
    levels = [handler.level for handler in handlers]
    assert handlers
    with logs_silenced():
        assert {handler.level for handler in handlers} == {logging.CRITICAL}
    assert [handler.level for handler in handlers] == levels
    monkeypatch.setenv("HEADRACE_DEBUG", "4")
    with logs_silenced():
        assert [handler.level for handler in handlers] == levels
