"""The tiny models that the committed bundles were recorded from, made so that a fault in attention shows.

Queries and keys are scaled up: random ones attend nearly evenly, and an even attention hides a wrong mask or scale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tiny import build

BUNDLES = Path(__file__).parent / "bundles"
HEADS = {
    "embed": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "token_classify": "AutoModelForTokenClassification",
}
# Scores then spread over 2 to 3 standard deviations; T5 divides by no root of the head's width.
SHARPER = {"t5": 1.2}
QUERIES_KEYS = re.compile(r"(query|key|q_proj|k_proj|\bq|\bk)\.(weight|bias)$")
NORMS = re.compile(r"(q_norm|k_norm)\.weight$")


@dataclass(frozen=True)
class Case:
    """One committed bundle: the tiny model, the task, and how it is traced."""

    model: str
    task: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    config: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.model}-{self.task}".replace("_", "-")

    @property
    def folder(self) -> Path:
        return BUNDLES / self.name


SINGLE = {"prefill": "single_pass"}
CASES = [
    *(Case(model, task) for model in ("bert", "modernbert", "xlm-roberta", "qwen3-bidirectional") for task in HEADS),
    Case("qwen3", "embed"),
    Case("qwen3", "classify"),
    Case("qwen3", "token_classify", SINGLE),
    *(Case(model, task) for model in ("gemma3", "gemma3-bidirectional") for task in ("embed", "classify")),
    *(Case("t5", task) for task in HEADS),
    # With more groups than one, the gated norm of transformers 5.17 is over all of them, of 5.24 within each.
    Case("mamba2", "embed", config={"n_groups": 1}),
]


def save(case: Case, folder: Path) -> Path:
    """Write the model of a bundle, its weights rounded to bfloat16 so that they are half the size."""
    import torch

    model = sharpened(build(case.model, HEADS[case.task], **case.config), SHARPER.get(case.model, 2.0))
    model.to(torch.bfloat16).save_pretrained(folder / case.model)
    return folder / case.model


def sharpened(model: Any, factor: float) -> Any:
    """Scale what makes queries and keys; where they are normalised, the norms' weights."""
    import torch

    named = dict(model.named_parameters())
    with torch.no_grad():
        norms = [(name, weight) for name, weight in named.items() if NORMS.search(name)]
        for _, weight in norms:
            # Some norms multiply by 1 + weight.
            plus = float(weight.mean() < 0.5)
            weight.copy_(factor * (weight + plus) - plus)
        for name, weight in () if norms else named.items():
            if "Wqkv" in name:
                weight[: 2 * weight.shape[0] // 3].mul_(factor)
            elif QUERIES_KEYS.search(name):
                weight.mul_(factor)
    return model
