"""Generation on several devices: prompts go to them whole."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.backends.several import Parallel
from tests.devices import on_several, several
from tests.tiny import build
from tests.words import gpt_like

PROMPTS = ["w5 w6 w7", [8, 9], "w10", "w11 w12 w13 w14"]


@pytest.mark.slow
def test_prompts_are_shared_out() -> None:
    one = headrace.lower(build("qwen3", "AutoModelForCausalLM"), target="reference", tokenizer=gpt_like())
    alone, both = one.compile(), on_several(one)
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 1.0, "seed": 3, "n": 2}
    assert both.generate(PROMPTS, **options) == alone.generate(PROMPTS, **options)
    parts = list(both.generate_iter(PROMPTS, max_new_tokens=5))
    assert {part.prompt for part in parts} == {0, 1, 2, 3}
    begun = both.generate_iter(PROMPTS, max_new_tokens=40)
    next(begun)
    begun.close()
    assert not both.engine.pool.loads.any()
    with pytest.raises(headrace.InputError, match="max_new_tokens"):
        both.generate(PROMPTS, max_new_tokens=-1)
    with pytest.raises(headrace.InputError, match="Prompt 1"):
        both.generate(["w5", 7.5])
    with pytest.raises(headrace.TargetError, match="none that callers share"):
        both.engine.decoding()
    both.close()


def test_a_split_model_makes_no_tokens_yet() -> None:
    one = headrace.lower(build("qwen3", "AutoModelForCausalLM"), target="reference")
    with pytest.raises(headrace.TargetError, match="generate is enabled for this model, but this version lacks"):
        on_several(one, several(parallel=Parallel.TENSOR), task="generate")
