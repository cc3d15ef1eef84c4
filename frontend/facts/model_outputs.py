"""What a headless model returns beside its hidden rows: a vector of its own, a stage on the way, or something else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from headrace.frontend.capture.attention import Call

# What headless models return. A pooler is part of sequence heads, which have an output of their own.
PLAIN = frozenset({"last_hidden_state", "pooler_output", "encoder_last_hidden_state"})
# How the fields are called in which models return a projection into a space that they share with another model.
VECTOR = "_embeds"


def own_vector(output: Any, rows: Tensor, returned: list[tuple[nn.Module, Any]]) -> tuple[str, nn.Module | None]:
    """A headless model's own vector a sequence: a projection that it was made for, else its pooler's."""
    named = dict(output.items()) if hasattr(output, "items") else {}
    names = [name for name, value in named.items() if isinstance(value, Tensor) and _is_vector(value, rows)]
    for name in sorted(names, key=lambda name: name in PLAIN):
        maker = next((m for m, out in reversed(returned) if out is named[name]), None)
        return name, maker
    return "", None


def _is_vector(value: Tensor, rows: Tensor) -> bool:
    return value.dim() == 2 and value.shape[0] == rows.shape[0] and value.is_floating_point()


def unserved(output: Any, rows: Tensor, passing: list[Tensor]) -> str:
    """The tensors that a headless model returns beside hidden rows, which may be what it was made for.

    One vector a sequence under a name that says so is served, as CLIP's projections are; a stage on the way to the
    rows is left out.
    """
    named = output.items() if hasattr(output, "items") else ()
    others = [(name, value) for name, value in named if isinstance(value, Tensor) and name not in PLAIN]
    kept = [name for name, value in others if not any(value is one for one in passing)]
    vectors = [name for name, value in others if name.endswith(VECTOR) and _is_vector(value, rows)]
    return "" if kept == vectors and len(kept) == 1 else ", ".join(kept)


def before_attention(returned: list[tuple[nn.Module, Any]], calls: list[Call]) -> list[Tensor]:
    """The tensors that modules returned before any attention ran: stages on the way, not what the model is for."""
    attentions = {made.module for made in calls}
    tensors: list[Tensor] = []
    for inner, output in returned:
        if inner in attentions:
            return tensors
        tensors += [value for value in _values(output) if isinstance(value, Tensor)]
    return []


def _values(output: Any) -> Iterable[Any]:
    if hasattr(output, "values") and not isinstance(output, Tensor):
        return output.values()  # type: ignore[no-any-return]
    return output if isinstance(output, (tuple, list)) else (output,)
