"""A model whose forward changes its module: whether the next text is answered as if it came first."""

from __future__ import annotations

from typing import Any

import torch

from headrace.errors import TraceError
from headrace.frontend.capture.attention import capture
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.signature import head_rows


def require_steady(model: EagerModel, output: Any, changed: tuple[str, ...]) -> None:
    """What a run changes in the module may not change the answer of the next one, which is run right after it.

    Args:
        output: what the first run answered of the plain inputs.
        changed: what it changed, in words.

    Raises:
        TraceError: the second run answers otherwise.
    """
    with capture(model.module, additive=True), torch.no_grad():
        model.call(model.plain)
        again = model.call(model.plain)
    before, after = head_rows(output), head_rows(again)
    if before is not None and (after is None or before.shape != after.shape or not torch.equal(before, after)):
        raise TraceError(
            "The model answers the same text otherwise when it is run again, after its forward has changed "
            f"{', '.join(changed[:5])}{' ...' * (len(changed) > 5)}. Each text is answered alone, whatever came before "
            "it: give a module whose forward keeps nothing that its answers depend on."
        )
