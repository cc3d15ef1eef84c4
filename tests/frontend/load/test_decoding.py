"""A folder's generation config becomes a fact of its program, and survives what programs survive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from headrace.frontend.load.checkpoint import load
from headrace.frontend.trace import trace
from headrace.ir import Beams, BeamStop, Decoding, Program
from headrace.ir.serialize import decode, encode
from tests import tiny


def traced(source: Any) -> Program:
    return trace(load(source, dtype=torch.float32)).program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny.build("llama", "AutoModelForCausalLM").save_pretrained(made)
    GenerationConfig(do_sample=True, temperature=0.6, eos_token_id=[3, 4, 100_000], max_new_tokens=9).save_pretrained(
        made
    )
    return made


EXPECTED = Decoding(ends=(3, 4), temperature=0.6, top_k=50, max_new_tokens=9)


def test_a_folder_says_how_it_is_decoded(folder: Path) -> None:
    program = traced(folder)
    assert program.facts.decoding == EXPECTED
    again = decode(Program, encode(program))
    assert again.facts.decoding == EXPECTED
    before = encode(program)
    del before["decoding"]  # of a manifest that was written before there was one
    assert decode(Program, before).facts.decoding is None


def test_a_module_in_a_module_says_it_too(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    class Wrapped(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> Any:
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)

    inner = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert traced(Wrapped(inner).eval()).facts.decoding == EXPECTED


def test_an_encoder_decoder_has_a_start_and_beams() -> None:
    module = tiny.build("t5", "AutoModelForSeq2SeqLM").eval()
    module.generation_config = GenerationConfig(
        decoder_start_token_id=1, eos_token_id=2, num_beams=4, early_stopping=True, length_penalty=2.0
    )
    expected = Decoding(start=(1,), ends=(2,), beams=Beams(4, 2.0, BeamStop.FIRST))
    assert traced(module).facts.decoding == expected


@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
def test_what_continues_nothing_has_no_such_fact(head: str) -> None:
    assert traced(tiny.build("bert", head).eval()).facts.decoding is None
