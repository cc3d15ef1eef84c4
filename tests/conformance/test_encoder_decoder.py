"""Contract C1 and D: what an encoder-decoder answers from the text alone, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.ir import AttentionType
from tests.conformance import oracle
from tests.tiny import EOS, VOCABULARY

SEQ2SEQ, SEQUENCE = "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification"
TYPES = (AttentionType.ENCODER, AttentionType.DECODER, AttentionType.ENCODER_DECODER)
CASES = [("t5", "reference"), ("bart", "reference"), ("bart", "cpu")]
REST = pytest.mark.slow(reason="the compiled encoder alone: the classifier's compiled code holds encoder and decoder")


@pytest.mark.parametrize(("name", "backend"), [*CASES[:2], pytest.param(*CASES[2], marks=REST)])
def test_embed_from_the_encoder(name: str, backend: str, tiny: Any, compiled: Any) -> None:
    """Alone and batched, the encoder's rows; the decoder takes no part."""
    model = compiled(name, SEQ2SEQ, backend)
    assert model.program.decision.route.name == "EncoderDecoderState"
    assert list(model.tasks) == ["embed", "generate", "token_embed"]
    requests, encoder = oracle.prompts(40, VOCABULARY), tiny(name, SEQ2SEQ).get_encoder()
    wanted = oracle.answers(encoder, requests, oracle.pooled("mean"), torch.float32)
    batched = model(requests, task="embed")
    oracle.require_close(batched, encoder, requests, oracle.pooled("mean"))
    oracle.require_close([model([ids], task="embed")[0] for ids in requests], encoder, requests, oracle.pooled("mean"))
    oracle.require_same_direction(batched, wanted)


def test_token_embed_from_the_encoder(tiny: Any, compiled: Any) -> None:
    model = compiled("t5", SEQ2SEQ, "reference")
    requests, encoder = oracle.prompts(20, VOCABULARY), tiny("t5", SEQ2SEQ).get_encoder()
    oracle.require_close(model(requests, task="token_embed"), encoder, requests, oracle.hidden)


def test_embed_what_an_encoder_of_arrays_heard(tiny: Any, compiled: Any) -> None:
    model, eager = compiled("whisper", "AutoModel", "reference"), tiny("whisper")
    sounds = np.random.default_rng(0).standard_normal((3, 8, 20)).astype(np.float32)
    with torch.no_grad():
        wanted = eager.get_encoder()(torch.from_numpy(sounds)).last_hidden_state.mean(1).numpy()
    for got in (model(sounds, task="embed"), [model(one[None], task="embed")[0] for one in sounds]):
        np.testing.assert_allclose(np.stack(got), wanted, atol=oracle.LEAST)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_classify_by_the_row_of_the_last_end(name: str, backend: str, tiny: Any, compiled: Any) -> None:
    """The decoder's target is made from the text, and the head reads the row of its last end token."""
    model = compiled(name, SEQUENCE, backend, config={"num_labels": 3})
    assert {spec.type for spec in model.program.nodes.attention} == set(TYPES)
    assert model.program.signature.marker == EOS
    ended = [[*ids, EOS] for ids in oracle.prompts(39, VOCABULARY)]
    requests = [*ended, [EOS], [5, EOS, 6], [EOS, 5, EOS, 6, 7]]
    eager = tiny(name, SEQUENCE, num_labels=3)
    oracle.require_close(model(requests), eager, requests, oracle.logits)
    oracle.require_close([model([ids])[0] for ids in requests], eager, requests, oracle.logits)


def test_a_text_without_an_end_is_refused(compiled: Any) -> None:
    """The eager model refuses it too."""
    model = compiled("bart", SEQUENCE, "reference", config={"num_labels": 3})
    with pytest.raises(headrace.InputError, match=r"token_ids\[1\] has no token 2, whose row the model's head reads"):
        model([[5, EOS], [5, 6, 7]])


def test_generating_has_no_raw_output(compiled: Any) -> None:
    with pytest.raises(headrace.InputError, match=r"generate answers by model\.generate"):
        compiled("bart", SEQ2SEQ, "reference")([[5, 6, 7]])


def test_saved_equals_loaded(compiled: Any, tmp_path: Any) -> None:
    """D3, B6: types, route and answers survive; the artifact holds the encoder's program."""
    model = compiled("bart", SEQ2SEQ, "reference")
    requests = oracle.prompts(20, VOCABULARY)
    first = model(requests, task="embed")
    loaded = headrace.load(model.save(tmp_path / "bart"), target="reference", trust=True)
    assert loaded.program == model.program
    for one, other in zip(first, loaded(requests, task="embed"), strict=True):
        assert (one == other).all()
