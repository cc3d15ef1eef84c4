"""Generation by onnxruntime beside Hugging Face: many architectures, mixed lengths in one batch, 64 steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import headrace
from tests import generating
from tests.coverage.configs import VOCABULARY, tiny_model

LENGTHS, NEW = (5, 17, 3, 11), 64
CAUSAL = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neo",
    "gpt_neox", "gptj", "opt", "bloom", "mpt", "falcon", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "cohere2",
    "granite", "glm", "glm4", "smollm3", "nemotron", "exaone4", "helium", "mixtral", "qwen3_moe", "gpt_oss", "olmoe",
)  # fmt: skip
HYBRID = ("lfm2", "mamba", "mamba2", "jamba", "bamba", "qwen3_next")
CROSSING = ("t5", "bart", "marian")

pytestmark = pytest.mark.slow(reason="test_past.py makes the tokens of a part of them, padded by callers too")


@pytest.mark.parametrize(
    ("name", "head"),
    [(name, "AutoModelForCausalLM") for name in CAUSAL + HYBRID]
    + [(name, "AutoModelForSeq2SeqLM") for name in CROSSING],
)
def test_the_tokens_are_those_of_hugging_face(name: str, head: str) -> None:
    model: Any = tiny_model(name, head)
    model.generation_config.eos_token_id = None
    prompts = generating.prompts(VOCABULARY, *LENGTHS)
    compiled = headrace.compile(model, target="onnx", task="generate", progress=False)
    made = compiled.generate(prompts, max_new_tokens=NEW, ignore_eos=True, temperature=0, beams=1)
    right = [generating.transformers_tokens(copy.deepcopy(model), own, NEW) for own in prompts]
    assert [list(one.token_ids) for one in made] == right
