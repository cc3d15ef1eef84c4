"""What the export left to be asserted at run time is tried at many sizes before the model is accepted."""

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn
from torch.export import Dim, export

from headrace.errors import TraceError
from headrace.frontend.export.runtime_asserts import broken_assertion
from headrace.frontend.trace import trace
from tests.tiny import VOCABULARY, build, checkpoint


class Reshaped(nn.Module):
    """Reshapes to a size that is right for some lengths only, or for all of them."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, input_ids: Tensor) -> Tensor:
        count = input_ids.shape[1]
        torch._check(count * min(64, 64 * count if self.always else count) == count * (64 if self.always else count))
        return input_ids + 1


def exported(always: bool):
    shape = {0: Dim("batch", min=1), 1: Dim("sequence", min=1)}
    ids = torch.ones((2, 7), dtype=torch.long)
    options = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
    made = export(Reshaped(always), (ids,), dynamic_shapes=(shape,), **options)
    return made.run_decompositions({})


def test_an_assertion_that_holds_at_every_length():
    assert broken_assertion(exported(True), None) is None


def test_an_assertion_that_a_longer_text_breaks():
    found = broken_assertion(exported(False), None)
    assert found is not None
    assert "length of 65" in found


def test_lengths_past_the_models_own_are_not_tried():
    assert broken_assertion(exported(False), 64) is None


class Embedded(Reshaped):
    """Reshapes what a model would."""

    def __init__(self, always: bool) -> None:
        super().__init__(always)
        self.table = nn.Embedding(VOCABULARY, 8)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(super().forward(input_ids) - 1)


def test_a_model_whose_guards_hold_is_traced():
    assert trace(checkpoint(Embedded(True))).program.signature.outputs[0].width == 8


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.18"), reason="its experts are a loop over slices")
def test_so_are_experts():
    """They reshape by a minimum of the length, which the export cannot prove away."""
    assert trace(checkpoint(build("aria-experts"))).program.evidence.routed_experts


def test_the_refusal_says_at_which_size(monkeypatch):
    monkeypatch.setattr("headrace.frontend.export.exporter.broken_assertion", lambda *_: "x == 64 (at a length of 65)")
    monkeypatch.setattr("headrace.frontend.export.exporter.holds_to", lambda _: None)
    with pytest.raises(TraceError, match="at a length of 65"):
        trace(checkpoint(Embedded(False)))
