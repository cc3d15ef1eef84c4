"""Contract D on a GPU for many architectures, float32 and bfloat16, packed where the program admits it.

Each test prints what ran and how far it was from the oracle; `pytest -m gpu -rP` shows it.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headrace
from headrace.backends import preferred
from tests.conformance import oracle
from tests.coverage.configs import VOCABULARY, tiny_model
from tests.tiny import randomise

ENCODERS = (
    "albert bert camembert data2vec-text distilbert electra ernie esm eurobert ibert jina_embeddings_v3 "
    "megatron-bert mobilebert modernbert mpnet nomic_bert rembert roberta roberta-prelayernorm roformer squeezebert "
    "xlm-roberta xlm-roberta-xl xmod"
).split()
# Experts, chosen by a router for each token, and so many more texts to see its chance by.
ROUTED, MANY = {"gpt_oss", "llama4_text", "mixtral", "qwen3_moe"}, 56
DECODERS = (
    "bloom cohere cohere2 falcon gemma gemma2 gemma3_text glm gpt2 gpt_neo gpt_neox gpt_oss gptj granite llama "
    "llama4_text mistral mixtral mpt nemotron olmo olmo2 opt phi phi3 qwen2 qwen3 qwen3_moe smollm3 stablelm starcoder2"
).split()


def built(name: str) -> Any:
    """The tiny model; skipped where this transformers has no such architecture, and for no other reason."""
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"needs a transformers that has {name}")
    return randomise(tiny_model(name, "AutoModel"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_embed(name: str, dtype: torch.dtype) -> None:
    check_embed(name, dtype, preferred())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_check_itself(dtype: torch.dtype) -> None:
    """What the GPU is held to, on a target that runs everywhere."""
    check_embed("qwen3", dtype, "reference")


def check_embed(name: str, dtype: torch.dtype, target: str) -> None:
    """One request and a batch of eight against the eager model in float32 on each alone (D1, D2, D3)."""
    eager = built(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = headrace.compile(copy.deepcopy(eager).to(dtype), target=target)
    requests = oracle.prompts(min(model.program.facts.limits.length or 64, 64), VOCABULARY)
    if name in ROUTED:
        requests += np.random.default_rng(0).integers(3, VOCABULARY, (MANY, 48)).tolist()
    read = oracle.pooled(str(model.program.facts.pooling.kinds[0]))
    batched = model(requests, task="embed")
    alone = [model([ids], task="embed")[0] for ids in requests]
    wanted = oracle.answers(eager, requests, read, torch.float32)
    lane = model.engine.lane("embed").program
    if dtype == torch.float32:
        oracle.require_close(batched, eager, requests, read)
        oracle.require_close(alone, eager, requests, read)
        worst = max(float(np.abs(a - b).max()) for a, b in zip(batched, wanted, strict=True))
        print(f"{name}: {lane.form.layout}, float32, differs by {worst:.1e}. {lane.form.layout_why}")
        return
    own = oracle.answers(eager, requests, read, dtype)
    mine, singles, theirs = (
        [oracle.distance(a, b) for a, b in zip(rows, wanted, strict=True)] for rows in (batched, alone, own)
    )
    for got in (mine, singles):
        over = past(got, theirs, routed=name in ROUTED)
        assert not over, f"1 - cosine of {len(over)} requests: {'; '.join(over)}"
    worst, theirs_worst = max(mine), max(theirs)
    print(f"{name}: {lane.form.layout}, bfloat16, 1 - cosine {worst:.1e}, Hugging Face's {theirs_worst:.1e}")


def past(mine: list[float], theirs: list[float], *, routed: bool) -> list[str]:
    """The requests further from the oracle than twice Hugging Face's own distance + 1e-4 (D1).

    With routed experts, whether a near tie falls to one or the other is chance in half precision, and one text is not
    held against itself: Hugging Face's own worst of 64 texts of Llama 4 is anything from 4e-4 to 1e-1 from draw to
    draw, while its median stays near 1e-4 and nine tenths below 4e-4. There the nine tenths that are nearest are
    compared, the nearest with the nearest and so on.
    """
    pairs = list(zip(sorted(mine), sorted(theirs), strict=True)) if routed else list(zip(mine, theirs, strict=True))
    compared = pairs[: len(pairs) * 9 // 10] if routed else pairs
    return [f"{one:.1e} > {2 * own + 1e-4:.1e}" for one, own in compared if one > 2 * own + 1e-4]


def test_what_counts_as_past() -> None:
    """A tenth of routed texts may fall to another expert; a loss that all texts share may not."""
    theirs = [1e-4] * 58 + [1e-2] * 6
    assert not past([1e-4] * 58 + [1e-1] * 6, theirs, routed=True)
    assert past([1e-4] * 50 + [1e-1] * 14, theirs, routed=True)
    assert past([4e-4] * 64, theirs, routed=True)
    assert past([1e-4] * 63 + [4e-1], theirs, routed=False)
