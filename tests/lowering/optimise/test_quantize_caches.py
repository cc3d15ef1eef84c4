"""Keys and values in eight bits: what they take, that nothing but their rounding changes an answer, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import headrace
from headrace.errors import InputError, TargetError
from headrace.ir import CODES, Task
from headrace.lowering.pipeline import prepare, quantize_caches
from headrace.ops import cached
from tests.generating import prompts

NEW = 12
# Plain, in windows beside whole, in chunks, rows that are keys and values, beside states of recurrences.
MODELS = ("llama", "gemma3", "llama4-chunked", "deepseek-v3", "qwen3-next")
FP8: dict[str, Any] = {"target": "reference", "task": "generate", "kv_cache_dtype": "fp8"}


@pytest.fixture(scope="module")
def wide() -> Any:
    """A llama whose heads are as wide as real ones."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=90, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
        intermediate_size=96, num_hidden_layers=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def made(wide: Any) -> headrace.CompiledModel:
    return headrace.compile(wide, **FP8)


def test_a_row_is_read_as_it_was_written_but_for_four_bits() -> None:
    rows = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 9)[:, None, None]
    rows[3] = 0
    slots = torch.tensor([5, 1, -1, 7, 0, 2, 9, 3, 11])
    cache, scales = torch.zeros(3, 4, 2, 64, dtype=torch.uint8), torch.zeros(3, 4, 2)
    cached.write(rows, cache, slots, scales)
    found = cached.read(cache, torch.arange(3), 12, scales)[0].transpose(0, 1)
    real = slots >= 0
    largest = rows[real].abs().amax(-1, keepdim=True)
    assert ((found[slots[real]] - rows[real]).abs() <= rows[real].abs() / 16 + largest / 448 / 2**9).all()
    assert not cache[1, 2].any(), "a row of no slot goes nowhere"


def test_a_token_takes_about_half_of_what_bfloat16_does(made: headrace.CompiledModel) -> None:
    layers, heads, width = 2, 2, 128
    form = made.engine.decoding().lane.program.form
    assert form.quantized_caches is not None
    assert form.quantized_caches.before == layers * 2 * heads * width * 4
    assert form.quantized_caches.after == layers * 2 * heads * (width + 4) <= 0.52 * form.quantized_caches.before / 2
    assert {cache.dtype for cache in form.caches} == {CODES, "float32"}
    store = made.engine.decoding().lane.state.store
    assert store is not None
    made.generate([[5, 6, 7]], max_new_tokens=2)
    assert store.bytes == sum(array.nbytes for array in store.arrays.values())
    assert store.bytes == store.pools["full"].count * form.block * form.quantized_caches.after


def test_logits_are_near_those_of_the_eager_model(wide: Any, made: headrace.CompiledModel) -> None:
    """Each of them, and not only the next token: the model is told what to say."""
    (text,) = prompts(90, 24)
    (answer,) = made.generate([text], max_new_tokens=NEW, ignore_eos=True, logprobs=5)
    with torch.no_grad():
        logits = wide(input_ids=torch.tensor([[*text, *answer.token_ids]])).logits[0, len(text) - 1 : -1]
    wanted = logits.log_softmax(-1)
    assert answer.logprobs is not None
    for place, (token, found) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        assert abs(float(wanted[place, token]) - _own(found, token)) <= 0.02


def _own(found: Any, token: int) -> float:
    return float(found.logprob if hasattr(found, "logprob") else found[token])


@pytest.mark.parametrize(
    "name",
    [
        *MODELS[:1],
        *(
            pytest.param(one, marks=pytest.mark.slow(reason="gemma3 has a window and shares the pass"))
            for one in MODELS[1:]
        ),
    ],
)
def test_pieces_prefixes_and_moves_change_nothing(name: str, tiny: Any) -> None:
    """A token's codes depend on no other token."""
    eager, texts = tiny(name, "AutoModelForCausalLM"), prompts(60, 7, 3, 40)
    alone = headrace.compile(eager, **FP8)
    wanted = [list(alone.generate([text], max_new_tokens=NEW, ignore_eos=True)[0].token_ids) for text in texts]
    pieces = headrace.compile(eager, **FP8, token_budget=5)
    for batch in ([2], [2, 0], [0, 1, 2], [2] * 24):  # the second finds a prefix, and the last outgrows the caches
        found = pieces.generate([texts[place] for place in batch], max_new_tokens=NEW, ignore_eos=True)
        assert [list(one.token_ids) for one in found] == [wanted[place] for place in batch]


def test_it_is_said_and_saved(made: headrace.CompiledModel, tmp_path: Any) -> None:
    found = made.engine.decoding().lane.program.form.quantized_caches
    assert found is not None
    said = " ".join(made.explain().split())
    assert f"keys and values in fp8, {found.after:,} bytes a token, {found.before:,} in float32; at" in said
    assert f"at {found.tokens} places of sample texts, cosine to the answers without it {found.mean:.5f}" in said
    assert f"the most likely next token is the same at {found.same}" in said
    again = headrace.load(made.save(tmp_path / "model"))
    texts = prompts(90, 9, 30)
    one, other = (model.generate(texts, max_new_tokens=NEW, ignore_eos=True) for model in (made, again))
    assert [a.token_ids for a in one] == [a.token_ids for a in other]
    assert again.engine.decoding().lane.program.form.quantized_caches == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "cpu"}, 'The target cpu does not run kv_cache_dtype="fp8"; reference, cuda and rocm do'),
        ({"target": "onnx"}, 'The target onnx does not run kv_cache_dtype="fp8"; reference, cuda and rocm do'),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'; choose from fp8"),
        ({"kv_cache_dtype": 8}, "kv_cache_dtype is 8; choose from fp8"),
        ({"task": "embed", "pooling": "last"}, "embed of a LlamaForCausalLM module takes one"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str, wide: Any) -> None:
    with pytest.raises((InputError, TargetError)) as refused:
        headrace.compile(wide, **FP8 | options)
    assert said in str(refused.value)
    assert "eave " in str(refused.value), "what to do"


@pytest.mark.parametrize(
    ("name", "head", "said"),
    [
        ("mamba2", "AutoModelForCausalLM", "keeps no keys and values"),
        pytest.param(
            "t5",
            "AutoModelForSeq2SeqLM",
            "an encoder's keys",
            marks=pytest.mark.slow(reason="mamba2 is refused beside it"),
        ),
    ],
)
def test_what_keeps_nothing_that_could_be_coded_is_refused(name: str, head: str, said: str, analysed: Any) -> None:
    with pytest.raises(InputError, match=said):
        quantize_caches(prepare(analysed(name, head), Task.GENERATE))
