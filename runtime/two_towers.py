"""Texts and images compared by the two towers of one model, each compiled by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ArtifactError, InputError
from headrace.ir import Activation
from headrace.runtime.artifact.saved_model import load
from headrace.runtime.engine.engine import Array
from headrace.runtime.model import CompiledModel
from headrace.runtime.tasks.answers.activation import activate
from headrace.runtime.tasks.answers.vectors import similarity
from headrace.runtime.tasks.classify import Classification

FILE, TEXT, IMAGE = "two_towers.json", "text", "image"
TEMPLATE = "This is a photo of {}."


@dataclass(frozen=True)
class TwoTowers:
    """What `headrace.compile_towers` returns: each tower embeds, and both together compare.

    Attributes:
        text: the tower of texts, a compiled model.
        image: the tower of images, which takes files where the folder has a processor.
        scale: what a cosine is multiplied by.
        bias: what is added; None where the model compares the texts of an image with one another.
    """

    text: CompiledModel
    image: CompiledModel
    scale: float
    bias: float | None = None

    def similarity(self, images: Any, texts: str | Iterable[str]) -> Array:
        """The model's logits of each image with each text, float32 [images, texts] (its `logits_per_image`).

        Args:
            images: as the image tower's `embed` takes them, one or many.
            texts: one or many.
        """
        cosines = similarity(self.image.embed(images), self.text.embed(texts))
        logits: Array = (cosines * self.scale + (self.bias or 0.0)).astype(np.float32)
        return logits

    def classify(self, images: Any, labels: list[str], template: str = TEMPLATE) -> list[Classification]:
        """Which of the labels fits each image, with every label's score, as transformers' zero-shot pipeline.

        The labels of a model with a bias are scored each by itself, those of one without against one another.

        Args:
            template: the sentence that a label makes in place of {}.

        Raises:
            InputError: no labels, or a template without a place for them.
        """
        if not isinstance(labels, (list, tuple)) or not labels or not all(isinstance(one, str) for one in labels):
            raise InputError(f"labels is {labels!r}; a list of the labels to choose from is accepted, as str.")
        if not isinstance(template, str) or "{}" not in template:
            raise InputError(f"template is {template!r}; a sentence with {{}} where the label goes is accepted.")
        logits = self.similarity(images, [template.replace("{}", label) for label in labels])
        scores = activate(logits, Activation.SOFTMAX if self.bias is None else Activation.SIGMOID)
        return [
            Classification(labels[int(row.argmax())], float(row.max()), dict(zip(labels, map(float, row), strict=True)))
            for row in scores
        ]

    def save(self, folder: str | Path) -> Path:
        """Write both towers to a folder for `load_towers`."""
        where = Path(folder)
        for name, tower in ((TEXT, self.text), (IMAGE, self.image)):
            tower.warm().save(where / name)
        (where / FILE).write_text(json.dumps({"scale": self.scale, "bias": self.bias}) + "\n", encoding="utf-8")
        return where


def load_towers(folder: str | Path, target: str = "auto", trust: bool | None = None) -> TwoTowers:
    """Load what `TwoTowers.save` wrote; arguments as of `headrace.load`.

    Raises:
        ArtifactError: it is no such folder, or a tower cannot be loaded.
    """
    where = Path(folder)
    try:
        said = json.loads((where / FILE).read_text(encoding="utf-8"))
        scale, bias = float(said["scale"]), None if said["bias"] is None else float(said["bias"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{where} holds no two towers ({FILE}: {error}). Give the folder that TwoTowers.save wrote."
        ) from error
    return TwoTowers(load(where / TEXT, target, trust), load(where / IMAGE, target, trust), scale, bias)
