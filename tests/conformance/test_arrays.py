"""Contract D for models that read arrays: each task against the oracle, alone and batched, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conformance import oracle
from tests.tiny import EOS, VOCABULARY, arrays


def own(name: str) -> Callable[[Any], Any]:
    return lambda output: getattr(output, name)


MEAN = oracle.pooled("mean")
CASES = [
    ("vit", "AutoModel", "embed", own("pooler_output")),
    ("vit", "AutoModelForImageClassification", "classify", oracle.logits),
    ("dinov2", "AutoModel", "embed", own("pooler_output")),
    ("dinov2", "AutoModelForImageClassification", "classify", oracle.logits),
    ("deit", "DeiTForImageClassification", "classify", oracle.logits),
    ("beit", "AutoModelForImageClassification", "classify", oracle.logits),
    ("clip-vision", "CLIPVisionModelWithProjection", "embed", own("image_embeds")),
    ("clip", "CLIPForImageClassification", "classify", oracle.logits),
    ("siglip-vision", "AutoModel", "embed", own("pooler_output")),
    ("siglip", "SiglipForImageClassification", "classify", oracle.logits),
    ("wav2vec2", "AutoModel", "embed", MEAN),
    ("wav2vec2-layer-norm", "AutoModelForAudioClassification", "classify", oracle.logits),
    ("hubert", "AutoModel", "embed", MEAN),
    ("whisper", "WhisperForAudioClassification", "classify", oracle.logits),
]
# The compiled graph is the same IR: one of each kind, and one of what differs in weights alone.
COMPILED = {"vit", "clip-vision", "wav2vec2"}
OTHERS = pytest.mark.slow(reason="as others of its kind, which are in every run, but for weights and shapes")
# Of vit that is compiled of which the classifier is made too, on the same rows.
SLOW = {
    ("wav2vec2", "embed", "cpu"),
    ("clip-vision", "embed", "cpu"),
    ("vit", "embed", "cpu"),
    ("hubert", "embed", "reference"),
    ("deit", "classify", "reference"),
    ("siglip", "classify", "reference"),
}


def cases() -> list[Any]:
    return [
        pytest.param(
            *case, target, id=f"{case[0]}-{case[2]}-{target}", marks=[OTHERS] * ((case[0], case[2], target) in SLOW)
        )
        for case in CASES
        for target in ("reference", "cpu")
        if target == "reference" or case[0] in COMPILED
    ]


@pytest.mark.parametrize(("name", "head", "task", "read", "backend"), cases())
def test_task(
    name: str, head: str, task: str, read: Callable[[Any], Any], backend: str, tiny: Any, compiled: Any
) -> None:
    """Eight requests at once and each alone equal the oracle (D1, D3)."""
    model, eager = compiled(name, head, backend), tiny(name, head)
    assert model.task == task
    given = model.program.signature.arrays[0]
    requests = [array for rows in (5, 2, 30, 3, 17, 2, 4, 5) for array in arrays(model.program, 1, rows, seed=rows)]
    feed = oracle.array_inputs(given.name)
    oracle.require_close(model(requests), eager, requests, read, feed)
    oracle.require_close([model([one])[0] for one in requests], eager, requests, read, feed)
    for one, other in zip(model(requests), model(requests), strict=True):
        np.testing.assert_array_equal(one, other)


TOWERS = [
    ("clip-text", "CLIPTextModelWithProjection", {"projection_dim": 16}, None, "text_embeds", "exact"),
    ("siglip-text", "SiglipTextModel", {}, "own", "pooler_output", "unpadded"),
]


@pytest.mark.parametrize(("name", "head", "config", "pooling", "field", "padding"), TOWERS, ids=["clip", "siglip"])
def test_text_tower(
    name: str,
    head: str,
    config: dict[str, Any],
    pooling: str | None,
    field: str,
    padding: str,
    tiny: Any,
    compiled: Any,
) -> None:
    """The vector that an image's is compared with: CLIP reads it at the end token, SigLIP at the last."""
    model = compiled(name, head, "reference", config=config, pooling=pooling)
    assert model.program.decision.padding == padding
    requests = [[*ids[:63], EOS] for ids in oracle.prompts(63, VOCABULARY)]
    eager = tiny(name, head, **config)
    oracle.require_close(model(requests), eager, requests, own(field))
    oracle.require_close([model([ids])[0] for ids in requests], eager, requests, own(field))
