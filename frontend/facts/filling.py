"""Texts that a model was trained on filled up to one length: told by where its own vector is read, and its tokenizer.

Such a vector is of the last position whatever the attention mask says, as SigLIP's; of a text that is not filled up it
has nothing to do with that of an image.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from headrace.errors import TraceError
from headrace.frontend.eager.model import EagerModel
from headrace.ir import Filling, Limits

# Masked tokens beside the text.
FILLER = 1
NEEDED = frozenset({"attention_mask", "position_ids"})
MASK = "attention_mask"
# Relative to the largest value.
BOUND = 1e-4
# What tokenizers state that state no length is far above.
LONGEST = 1_000_000


def reads_last_position(model: EagerModel) -> bool:
    """Whether the model's own vector is of the last position of a text, be it masked.

    Then masked tokens after the text change it, and before the text they do not: two runs beside the first of all. Of
    a causal model that is no sign: its last row is the text's, with padding on the left as such models have it.
    """
    seen = model.seen
    if not seen.own or seen.causal or seen.pair is not None or not set(model.signature.inputs) >= NEEDED:
        return False

    def own(inputs: dict[str, Tensor]) -> Tensor:
        found: Tensor = getattr(model.run(inputs), seen.own).double()
        return found

    def filled(before: int, after: int) -> Tensor:
        return own({name: functional.pad(model.placed[name], (before, after)) for name in model.signature.inputs})

    alone = own(model.plain)
    return not _same(alone, filled(0, FILLER)) and _same(alone, filled(FILLER, 0))


def _same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= BOUND * one.abs().max())


def read_filling(tokenizer: Any, limits: Limits, field: str) -> Filling | None:
    """How texts are filled up for a model whose vector is of the last position; None where it has no tokenizer.

    A tokenizer that gives no attention mask was made for a model that reads padding as text.

    Raises:
        TraceError: the tokenizer does not say how.
    """
    if tokenizer is None:
        return None
    stated = getattr(tokenizer, "model_max_length", LONGEST)
    lengths = [length for length in (limits.length, stated) if length is not None and length < LONGEST]
    names, token = getattr(tokenizer, "model_input_names", ()), getattr(tokenizer, "pad_token_id", None)
    lacking = ["gives an attention mask, so that padding would not be read"] * (MASK in names)
    lacking += ["has no pad_token"] * (token is None) + ["states no model_max_length"] * (not lengths)
    if lacking or token is None:
        raise TraceError(
            f"The model's own vector, {field}, is of the last position whatever the mask says: it was trained on texts "
            "that were filled up to one length, the padding read as text. How is for the tokenizer to say, but it "
            f"{', and '.join(lacking)}. Give the model's own tokenizer (its model_input_names are input_ids alone), or "
            "none and call the model on ids that are filled up, or choose another pooling=."
        )
    left = getattr(tokenizer, "padding_side", "right") == "left"
    return Filling(
        int(min(lengths)), int(token), left, f"{field} is of the last position, and the tokenizer masks none"
    )
