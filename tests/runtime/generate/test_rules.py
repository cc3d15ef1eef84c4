"""What the folder and the caller rule out, as transformers' processors do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from headrace.errors import InputError
from headrace.frontend.load.decoding import read_decoding
from headrace.ir import Decoding
from headrace.runtime.generate.answer import Model, Start
from headrace.runtime.generate.batch import batched
from headrace.runtime.generate.options import GenerateOptions, read_options
from headrace.runtime.generate.rules import Rules
from headrace.runtime.generate.sampling import adjust

V = 40
END = 2
HELD = np.array([30, 31])


def by_transformers(config: GenerationConfig, prompt: list[int], new: list[int], scores: Any, source: Any) -> Any:
    """The scores as `generate` makes them: its own list of processors, asked of a model that has nothing else."""
    from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": V, "pad_token_id": 1, "eos_token_id": END}
    if source is not None:
        sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1}
        sizes |= {"decoder_attention_heads": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
        model: Any = BartForConditionalGeneration(BartConfig(**small, **sizes))
    else:
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        model = LlamaForCausalLM(LlamaConfig(**small, **sizes))
    config.update(**config._get_default_generation_params(), defaults_only=True)
    if config.max_new_tokens is not None:
        config.max_length = config.max_new_tokens + len(prompt)
    if config.min_new_tokens is not None:
        config.min_length = config.min_new_tokens + len(prompt)
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        generation_config=config, input_ids_seq_length=len(prompt),
        encoder_input_ids=None if source is None else torch.tensor([source]), device="cpu",
    )  # fmt: skip
    return processors(torch.tensor([[*prompt, *new]]), scores.clone())


ENTRIES = st.fixed_dictionaries(
    {"eos_token_id": st.sampled_from([END, [END, 5]])},
    optional={
        "suppress_tokens": st.just([7, 8]),
        "begin_suppress_tokens": st.just([9, END]),
        "bad_words_ids": st.just([[3], [END], [4, 6], [6, 4, 3]]),
        "sequence_bias": st.just([[[10], 2.5], [[4, 11], -3.0], [[3, 4, 11], 1.0]]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "encoder_no_repeat_ngram_size": st.integers(1, 3),
        "min_length": st.integers(1, 9),
        "min_new_tokens": st.integers(0, 5),
        "forced_bos_token_id": st.just(12),
        "forced_eos_token_id": st.just([END]),
        "repetition_penalty": st.sampled_from([1.3, 0.7]),
        "max_length": st.integers(8, 12),
    },
)


@pytest.mark.parametrize("pair", [False, True])
@settings(max_examples=150, deadline=None)
@given(entries=ENTRIES, data=st.data())
def test_scores_are_those_of_generate(pair: bool, entries: dict[str, Any], data: Any) -> None:
    config = GenerationConfig(**entries, pad_token_id=1, decoder_start_token_id=1)
    ids = st.integers(3, 8)
    source = data.draw(st.lists(ids, min_size=1, max_size=8)) if pair else None
    prompt = [1] if pair else data.draw(st.lists(ids, min_size=1, max_size=6))
    new = data.draw(st.lists(ids, max_size=min(6, entries.get("max_length", 20) - len(prompt) - 1)))
    scores = torch.randn(1, V, generator=torch.Generator().manual_seed(len(new)))
    decoding = read_decoding(config.to_dict(), V, pair=pair)
    given = {} if "max_length" in entries else {"max_new_tokens": 20 - len(prompt)}
    config.update(**({"max_length": 20} if given else {}))
    expected = by_transformers(config, prompt, new, scores, source)

    options = read_options(decoding, **given)
    start = Start(Model(decoding, V), np.array(source or prompt), options, source=pair)
    found = adjust(scores, batched([start.row(np.array(new, np.int64))], V))
    forced = torch.isinf(expected).sum() >= V - 2
    if forced:  # which of the tokens is likelier is nothing: transformers gives each the same
        assert torch.equal(torch.isinf(found), torch.isinf(expected))
    else:
        torch.testing.assert_close(found, expected)


def test_stop_tokens_are_ruled_out_before_the_least() -> None:
    rules = Rules(GenerateOptions(stop_token_ids=[9]), Decoding(ends=(END,)), V, (3, 10))
    for place in range(5):
        ids, values = rules.biases(HELD, np.arange(place))
        assert (sorted(ids.tolist()) == [END, 9]) == (place < 3)
        assert np.isneginf(values).all()


def test_biases_of_a_caller_and_a_folder_add_up() -> None:
    rules = Rules(GenerateOptions(logit_bias={4: 1.5, 5: -2}), Decoding(biases=(((4,), 2.0),)), V, (0, 9))
    ids, values = rules.biases(HELD, np.arange(3))
    assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == {4: 3.5, 5: -2.0}
    assert rules.biases(HELD, np.arange(1)) is rules.biases(HELD, np.arange(2))
    assert not rules.idle


@pytest.mark.parametrize(
    ("decoding", "given", "idle"),
    [
        (Decoding(ends=(END,), temperature=1.0), {}, True),
        (Decoding(), {"min_new_tokens": 3}, True),
        (Decoding(ends=(END,)), {"min_new_tokens": 3}, False),
        (Decoding(suppressed=(4,)), {}, False),
        (Decoding(suppressed_first=(4,)), {}, False),
        (Decoding(first=4), {}, False),
        (Decoding(last=(4,)), {}, False),
        (Decoding(no_repeat=2), {}, False),
        (Decoding(bad_words=((3, 4),)), {}, False),
        (Decoding(biases=(((3,), 1.0),)), {}, False),
        (Decoding(), {"logit_bias": {4: 1}}, False),
    ],
)
def test_rules_are_idle_where_they_ask_for_nothing(decoding: Decoding, given: Any, idle: bool) -> None:
    options = GenerateOptions(**given)
    assert Rules(options, decoding, V, (options.min_new_tokens or 0, 9)).idle == idle


@pytest.mark.parametrize("given", [{"logit_bias": {V: 1}}, {"stop_token_ids": [V]}])
def test_tokens_beyond_the_head_are_refused(given: Any) -> None:
    name = next(iter(given))
    with pytest.raises(InputError, match=f"{name} holds {V}; 0 to {V - 1} are accepted"):
        Rules(GenerateOptions(**given), Decoding(), V, (0, 9))
