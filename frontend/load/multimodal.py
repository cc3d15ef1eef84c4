"""A model whose forward failed: why, and how to load one tower where the model has several."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import nn

from headrace.frontend.eager.signature import ARRAYS, DECODED, CallSignature


def failure(module: nn.Module, config: Any, signature: CallSignature, what: str, error: Exception) -> str:
    """The message for a forward that failed on a batch of `what`."""
    takes = {name for inner in module.modules() for name in inspect.signature(inner.forward).parameters}
    if not signature.arrays and (others := sorted(takes & set(ARRAYS))):
        read = ["input_ids", *others]
        if DECODED[0] in takes:
            read, cure = [*others, DECODED[0]], "Give its encoder alone, as get_encoder() returns it."
        else:
            towers = _classes_of_parts(module, config)
            named = f" (here {', '.join(towers)})" if towers else ""
            both = " Both of a model that compares texts with images: headrace.compile_towers."
            cure = f"One tower at a time is served: load it by its own class{named} and give that.{both}"
        return f"The model reads {' and '.join(read)} together, and its forward fails on token ids alone. {cure}"
    return f"The model's own forward fails on a batch of {what}: {error}"


def _classes_of_parts(module: nn.Module, config: Any) -> list[str]:
    """For a message: the classes beside the model's own that load one part of its checkpoint."""
    parts = tuple(getattr(config, "sub_configs", {}).values())
    beside = vars(sys.modules[module.__class__.__module__])
    return sorted(
        name
        for name, found in beside.items()
        if name in beside.get("__all__", ()) and getattr(found, "config_class", None) in parts
    )
