"""The text side of a model that reads images beside texts, as a model of texts alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from headrace.errors import LoadError


class TextSide(nn.Module):
    """What the model makes of a text, by transformers' `get_text_features`; its image side is held, and never run."""

    def __init__(self, model: nn.Module) -> None:
        """Keep the model, which stays the caller's.

        Raises:
            LoadError: it has no text side.
        """
        super().__init__()
        if not callable(getattr(model, "get_text_features", None)):
            raise LoadError(
                "The model beside the pipeline's CLIPModel has no get_text_features, by which its texts would be read."
            )
        held: Any = model
        self.model, self.config = model, held.config.get_text_config()

    def get_input_embeddings(self) -> nn.Module:
        """The table of the text side's tokens."""
        model: Any = self.model
        table: nn.Module = model.text_model.get_input_embeddings()
        return table

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> ModelOutput:
        """The rows [B, S, H], and each text's vector [B, d] in the space that it shares with images."""
        model: Any = self.model
        made = model.get_text_features(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)
        found = {"last_hidden_state": made.last_hidden_state, "text_embeds": made.pooler_output}
        return ModelOutput(found)  # type: ignore[no-untyped-call]
