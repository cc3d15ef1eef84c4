"""A part of `make coverage` in every test run."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.coverage import page
from tests.coverage.configs import text_rows, tiny_config
from tests.coverage.work import row_of

SERVED = (
    ("bert", "AutoModelForMaskedLM"),
    ("roberta", "AutoModelForSequenceClassification"),
    ("xlm-roberta", "AutoModelForTokenClassification"),
    ("modernbert", "AutoModel"),
    ("qwen3", "AutoModelForCausalLM"),
    ("gemma3_text", "AutoModel"),
    ("gpt2", "AutoModelForSequenceClassification"),
    ("deepseek_v3", "AutoModel"),
    *(
        pytest.param(name, "AutoModel", marks=pytest.mark.slow(reason=f"a row like the others; {elsewhere}"))
        for name, elsewhere in (
            ("gemma3_text", "tests/conformance has its windows"),
            ("llama4_text", "tests/runtime/engine/test_decoding.py has its chunks"),
        )
    ),
)
# What each does that others do not: a trigram, kernels made of tokens, two attentions a module, experts in a form of
# their own, convolved keys, a mask beneath a bias. The default run has two; the others are at length what it does.
UNUSUAL = (
    "convbert",
    "inkling_text",
    *(
        pytest.param(name, marks=pytest.mark.slow(reason="make coverage: its row of the page"))
        for name in "mobilebert lilt diffllama dbrx longcat_flash openai_privacy_filter jetmoe doge".split()
    ),
)
REFUSED = (("gemma-contradiction", "AutoModel", "contradicts"), ("llama-ignored-flag", "AutoModel", "contradicts"))


@pytest.mark.parametrize(("architecture", "head"), SERVED)
def test_a_row_is_served(architecture: str, head: str) -> None:
    record = row_of(architecture, head)
    assert page.status(record) == page.WITHIN, record
    assert record["packed"] is True


@pytest.mark.parametrize("architecture", UNUSUAL)
def test_what_is_like_no_other_is_served(architecture: str) -> None:
    record = row_of(architecture, "AutoModel")
    assert page.status(record) == page.WITHIN, record


@pytest.mark.parametrize("architecture", ["lfm2", pytest.param("gemma3n_text", marks=pytest.mark.slow)])
def test_a_row_generates(architecture: str) -> None:
    """Convolutions beside attention; keys that layers share from the first one on, which are no cross attention."""
    record = row_of(architecture, "AutoModelForCausalLM")
    assert page.status(record) == page.WITHIN, record
    assert record["generates"] is True, record


@pytest.mark.parametrize("name", ["bailing_hybrid", "deepseek_v3", "flint", "gemma3n_text", "hy_v4", "lfm2", "smollm3"])
def test_a_row_has_every_kind_of_layer(name: str) -> None:
    """What a default configuration has in any layer, the tiny one has in one of its few."""
    small, default = tiny_config(name), CONFIG_MAPPING[name]()
    for field in ("layer_types", "mlp_layer_types", "indexer_types", "no_rope_layers"):
        kinds = set(getattr(default, field, None) or ())
        assert kinds <= set(getattr(small, field, None) or ()), field
    assert getattr(small, "first_k_dense_replace", 0) < small.num_hidden_layers
    assert len(getattr(small, "mlp_only_layers", None) or ()) < small.num_hidden_layers
    assert bool(getattr(small, "num_kv_shared_layers", 0)) == bool(getattr(default, "num_kv_shared_layers", 0))


@pytest.mark.parametrize("architecture", ["ibert", "squeezebert"])
def test_an_attention_inside_another_module_is_proven(architecture: str) -> None:
    """Rows lie along the last dimension and the product is a module of its own; the answer is a pair of pairs."""
    record = row_of(architecture, "AutoModel")
    assert record["verified"]
    assert page.status(record) == page.WITHIN


@pytest.mark.parametrize(("architecture", "head", "word"), REFUSED)
def test_a_row_is_refused(architecture: str, head: str, word: str) -> None:
    record = row_of(architecture, head)
    assert page.status(record) == page.REFUSED
    assert word in record["refused"]


def test_a_row_that_recurs_is_packed_and_the_page_says_so() -> None:
    record = row_of("mamba2", "AutoModel")
    assert page.status(record) == page.WITHIN, record
    assert record["packed"] is True, record
    padded = record | {"architecture": "other", "packed": "it looks ahead"}
    text = page.document([record, padded], "versions")
    assert "1 of 2 rows with a recurrence run packed" in text
    assert "| mamba2 | none | causal_conv1d, chunk_scan | yes |" in text
    assert "| other | none | causal_conv1d, chunk_scan | it looks ahead |" in text


def test_what_transformers_cannot_run_is_not_counted() -> None:
    record = row_of("lxmert", "AutoModel")  # wants pictures too
    assert page.status(record) == page.UNBUILT
    assert "0 of 0 rows" in page.summary([record])


def test_the_denominator_is_the_installed_transformers_own() -> None:
    rows = list(text_rows())
    assert len({architecture for architecture, _ in rows}) >= 150
    assert {"bert", "t5", "mamba", "deberta-v2", "bart"} <= {architecture for architecture, _ in rows}
    assert not {"vit", "clip", "wav2vec2", "llava"} & {architecture for architecture, _ in rows}
