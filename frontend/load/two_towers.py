"""A model of two towers, one for texts and one for images, whose vectors it compares: each tower as a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import LoadError
from headrace.frontend.load.checkpoint import Checkpoint

# What such a model of transformers makes vectors by, and what it scales their cosine by, as a logarithm.
TEXTS, IMAGES, SCALE, BIAS = "get_text_features", "get_image_features", "logit_scale", "logit_bias"


class TextTower(nn.Module):
    """Token ids to the vector that the whole model compares."""

    def __init__(self, whole: nn.Module) -> None:
        """Keep the module, which stays the caller's."""
        super().__init__()
        self.whole = whole

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Any:
        """As of the whole model, with rows and the vector."""
        return getattr(self.whole, TEXTS)(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        )  # fmt: skip


class ImageTower(nn.Module):
    """Pixels to the vector that the whole model compares."""

    def __init__(self, whole: nn.Module) -> None:
        """Keep the module, which stays the caller's."""
        super().__init__()
        self.whole = whole

    def forward(self, pixel_values: Tensor) -> Any:
        """As of the whole model, with rows and the vector."""
        return getattr(self.whole, IMAGES)(pixel_values=pixel_values)


@dataclass(frozen=True)
class TwoTowers:
    """The towers, and what makes a logit of a text's and an image's vector: their cosine times `scale` plus `bias`.

    Attributes:
        bias: None where the model has none, and compares the texts of an image with one another.
    """

    text: Checkpoint
    image: Checkpoint
    scale: float
    bias: float | None


def split(checkpoint: Checkpoint) -> TwoTowers:
    """The towers of a model, by what it can be asked.

    Raises:
        LoadError: it makes no vectors of texts or of images, or says of no scale.
    """
    whole: Any = checkpoint.module
    lacking = [name for name in (TEXTS, IMAGES, SCALE) if getattr(whole, name, None) is None]
    if lacking:
        raise LoadError(
            f"{checkpoint.name} is no model of two towers: it has no {', '.join(lacking)}, as those of CLIP's and "
            "SigLIP's kinds have. Compile it by headrace.compile."
        )
    bias = getattr(whole, BIAS, None)
    return TwoTowers(
        text=replace(checkpoint, module=TextTower(whole).eval()),
        image=replace(checkpoint, module=ImageTower(whole).eval(), tokenizer=None),
        scale=_number(torch.as_tensor(whole.logit_scale).exp()),
        bias=None if bias is None else _number(torch.as_tensor(bias)),
    )


def _number(value: Tensor) -> float:
    return float(value.detach().double().reshape(()))
