"""Keys and values that are maps of one row a token are kept as that row, and what is answered stays."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.ir import Program, Task
from headrace.lowering.forms.compressed import read_compressed
from headrace.lowering.pipeline import prepare
from headrace.runtime.tools.inspect.words import kept_text
from tests.coverage.configs import tiny_model
from tests.generating import prompts, transformers_tokens

# Of a row a latent of 16 numbers, and 8 that are rotated; of 4 heads keys of 8 and those 8, and values of 12.
LATENT, SHARED, HEADS, OWN, VALUES = 16, 8, 4, 8, 12
FAMILIES = ("deepseek_v3", "minicpm3")
OTHERS = ("deepseek_v2", "glm4_moe_lite", "youtu", "longcat_flash")


@pytest.mark.parametrize(
    "family",
    [*FAMILIES, *(pytest.param(one, marks=pytest.mark.slow(reason="deepseek_v3 is of their kind")) for one in OTHERS)],
)
def test_a_latent_is_kept_and_tokens_are_those_of_transformers(family: str) -> None:
    """Alone, together, in chunks, and after a prefix that is known."""
    eager = tiny_model(family, "AutoModelForCausalLM")
    texts = prompts(90, 7, 3, 21)
    wanted = [transformers_tokens(eager, text, 8, eos_token_id=-1) for text in texts]
    model = headrace.compile(eager, target="reference", task="generate", token_budget=5)
    for batch in ([0], [1], [2], [0, 1, 2], [2, 0]):
        found = model.generate([texts[place] for place in batch], max_new_tokens=8, ignore_eos=True)
        assert [list(one.token_ids) for one in found] == [wanted[place] for place in batch]
    program = model.engine.decoding().lane.program
    assert {cache.sizes for cache in program.form.caches} == {(1, LATENT + SHARED)}
    assert all(spec.compressed and spec.kv_heads == 1 for spec in program.nodes.attention)


def test_the_shared_part_of_keys_is_told_from_what_is_multiplied(analysed: Any) -> None:
    for found in read_compressed(analysed("deepseek-v3", "AutoModelForCausalLM")):
        assert found is not None
        assert (found.width, found.shared, found.shared_first) == (LATENT + SHARED, SHARED, False)
        assert found.key_map.shape == (HEADS, OWN, LATENT)
        assert found.value_map.shape == (HEADS, LATENT, VALUES)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "bloom"])
def test_keys_that_are_no_wider_than_a_row_are_kept(name: str, analysed: Any) -> None:
    """GPT-2's keys and values are maps of the hidden row, which is half as wide as both."""
    assert not any(read_compressed(analysed(name, "AutoModelForCausalLM")))


def test_a_target_that_runs_no_rows_keeps_keys_and_values(analysed: Any) -> None:
    program: Program = prepare(analysed("deepseek-v3", "AutoModelForCausalLM"), Task.GENERATE)
    assert {cache.sizes[0] for cache in program.form.caches} == {HEADS}
    assert not any(spec.compressed for spec in program.nodes.attention)


def test_a_row_wider_than_the_target_holds_is_not_kept(analysed: Any) -> None:
    width = LATENT + SHARED
    narrow, wide = (
        prepare(analysed("deepseek-v3", "AutoModelForCausalLM"), Task.GENERATE, widest_row=most)
        for most in (width - 1, width)
    )
    assert {cache.sizes[0] for cache in narrow.form.caches} == {HEADS}
    assert not any(spec.compressed for spec in narrow.nodes.attention)
    assert narrow.form.whole_why == f"a row of {width} numbers makes them, and the target keeps rows of {width - 1}"
    assert f"keys and values whole: {narrow.form.whole_why}" in kept_text(narrow)
    assert not wide.form.whole_why
    assert {(spec.qk_head_dim, spec.v_head_dim) for spec in wide.nodes.attention} == {(width, LATENT)}
