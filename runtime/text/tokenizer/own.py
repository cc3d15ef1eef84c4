"""A tokenizer that nobody else holds: each call of one leaves settings behind that the next, on any thread, meets."""

from __future__ import annotations

import copy
from typing import Any

from headrace.errors import warn


def own_copy(tokenizer: Any) -> Any:
    """A copy without the settings that calls leave behind; the tokenizer itself, with a warning, where it has none."""
    try:
        made = copy.deepcopy(tokenizer)
    except Exception as error:  # of whatever code the tokenizer is made of
        warn(
            f"The tokenizer cannot be copied ({error}), so that it is shared with whoever else holds it. Leave it "
            "alone while this model reads texts: a call elsewhere can truncate them.",
        )
        return tokenizer
    library: Any = getattr(made, "backend_tokenizer", None)
    if hasattr(library, "no_truncation"):
        library.no_truncation()
        library.no_padding()
    return made
