"""The token ids that a model takes, and those that its code may look for."""

from __future__ import annotations

from typing import Any

from torch import nn

from headrace.errors import TraceError


def vocabulary_size(module: nn.Module) -> int:
    """Rows of the input embedding: the token ids that the model can take.

    Raises:
        TraceError: the model has no input embedding.
    """
    for inner in module.modules():
        try:
            embedding = inner.get_input_embeddings()  # type: ignore[operator]
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if embedding is not None and hasattr(embedding, "weight"):
            return int(embedding.weight.shape[0])
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    if not tables:
        raise TraceError("The model has no embedding of token ids; Headrace serves models that read token ids.")
    return int(tables[0].num_embeddings)


def special_ids(config: Any) -> frozenset[int]:
    """Padding and end-of-text ids, which some heads look for in the text."""
    return frozenset(_ids(config, "pad_token_id", "eos_token_id", "bos_token_id"))


def end_ids(config: Any) -> tuple[int, ...]:
    """The ids that may end a text."""
    return _ids(config, "eos_token_id")


def _ids(config: Any, *names: str) -> tuple[int, ...]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = (getattr(text, name, None) for name in names)
    return tuple(i for value in found for i in (value if isinstance(value, list) else [value]) if i is not None)
