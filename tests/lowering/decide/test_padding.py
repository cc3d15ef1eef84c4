"""Whether padding is exact is measured: where tokens leak past the mask, sequences run unpadded."""

import dataclasses

import pytest
import torch
from torch import nn

from headrace import sample
from headrace.frontend.trace import trace
from headrace.ir import PaddingRule
from headrace.lowering.decide.padding import MeasurePadding
from tests.tiny import build, checkpoint


class Wrapper(nn.Module):
    """A model with something over its rows."""

    def __init__(self, inner, over):
        super().__init__()
        self.inner, self.over = inner, over

    def forward(self, input_ids, attention_mask, position_ids=None, token_type_ids=None):
        output = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, token_type_ids=token_type_ids
        )
        rows = self.over(output.last_hidden_state, attention_mask)
        if rows.dim() == 3:  # as a model returns them; a pooled vector stays bare
            output.last_hidden_state = rows
        return output if rows.dim() == 3 else rows


class Convolution(nn.Module):
    """Over three neighbouring tokens, whatever they are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, rows, attention_mask):
        return self.mix(rows.transpose(1, 2)).transpose(1, 2)


class MaskedConvolution(Convolution):
    """The same, with the padding's rows set to zero before."""

    def forward(self, rows, attention_mask):
        return super().forward(rows * attention_mask[:, :, None].to(rows.dtype), attention_mask)


class Centred(nn.Module):
    """Subtracts the mean over all rows of the batch's shape, the padding's too."""

    def forward(self, rows, attention_mask):
        return rows - rows.mean(1, keepdim=True)


def measured(over):
    return MeasurePadding()(
        trace(checkpoint(Wrapper(build("bert", num_hidden_layers=1), over))).program
    ).decision.padding


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "modernbert", "qwen2", "gemma3-bidirectional", "gpt2", "opt", "mixtral"]
)
def test_padding_is_exact_behind_a_mask(analysed, name):
    assert analysed(name).decision.padding is PaddingRule.EXACT


@pytest.mark.parametrize("over", [Convolution, Centred])
def test_what_mixes_tokens_past_the_mask_is_unpadded(over):
    assert measured(over()) is PaddingRule.UNPADDED


def test_what_mixes_tokens_and_masks_them_is_exact():
    assert measured(MaskedConvolution()) is PaddingRule.EXACT


def test_fourier_mixing_is_unpadded(analysed):
    assert analysed("fnet").decision.padding is PaddingRule.UNPADDED


def test_a_pooled_output_counts_too():
    """Hidden rows alone are exact here; a sum over all of them, padding and all, is not, nor one that the IR knows."""

    class Sum(nn.Module):
        def forward(self, rows, attention_mask):
            return rows.sum(1)[:, :3]

    assert measured(Sum()) is PaddingRule.UNPADDED


def test_no_room_for_padding_is_unpadded(traced):
    program = traced("bert").program
    one = program.with_(limits=dataclasses.replace(program.facts.limits, length=1))
    assert MeasurePadding()(one).decision.padding is PaddingRule.UNPADDED


@pytest.mark.parametrize("limit", [2, 6, 9])
def test_stays_within_the_limit(traced, limit):
    program = traced("bert").program
    short = program.with_(limits=dataclasses.replace(program.facts.limits, length=limit))
    assert MeasurePadding()(short).decision.padding is PaddingRule.EXACT


def test_the_sample_holds_what_would_leak(traced):
    given = sample.one(traced("roberta").program, 3, 6)
    assert given["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]
    assert given["position_ids"].tolist() == [[2, 3, 4, 2, 2, 2]]
    assert (given["input_ids"] != 0).all()
    assert len(set(given["input_ids"][0, :3].tolist())) == 3


def test_leaves_all_but_the_rule_alone(traced):
    before = traced("bert").program
    after = MeasurePadding()(before)
    assert after.graph is before.graph
    assert after.with_(padding=None) == before
