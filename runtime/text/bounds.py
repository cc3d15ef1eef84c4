"""How long a request may be, and what says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import InputError
from headrace.ir import Program
from headrace.runtime.text.validate import counts

# transformers writes 1e30 where a tokenizer states no limit.
NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Bound:
    """The longest accepted request in tokens, None where nothing bounds it, and what sets it."""

    length: int | None
    why: str


def find_bound(tokenizer: Any, program: Program, max_length: int | None, token_budget: int | None) -> Bound:
    """The least of what the model can read, what texts are limited to, and what one run may hold.

    Texts are limited by the user, else by the model's folder, else by its tokenizer.

    Raises:
        InputError: a limit below one, or above what the model can read, or a budget below the length of every text.
    """
    hard = Bound(program.facts.limits.length, program.facts.limits.why)
    for name, limit in (("max_length", max_length), ("token_budget", token_budget)):
        if limit is not None and not counts(limit):
            raise InputError(f"{name} is {limit!r}; an int of 1 and above is accepted.")
    if max_length is not None and hard.length is not None and max_length > hard.length:
        raise InputError(
            f"max_length is {max_length}, but the model reads at most {hard.length} tokens ({hard.why}). Pass at most "
            f"{hard.length}."
        )
    filled = program.facts.filling
    if filled is not None and token_budget is not None and token_budget < filled.length:
        raise InputError(
            f"token_budget is {token_budget}, but every text is filled up to {filled.length} tokens ({filled.why}). "
            f"Pass at least {filled.length}."
        )
    budget = Bound(token_budget, f"token_budget={token_budget}")
    set_ = [bound for bound in (hard, _text_limit(tokenizer, program, max_length), budget) if bound.length is not None]
    return min(set_, key=lambda bound: bound.length or 0, default=hard)


def _text_limit(tokenizer: Any, program: Program, max_length: int | None) -> Bound:
    if max_length is not None:
        return Bound(max_length, f"max_length={max_length}")
    if program.facts.text.max_length is not None:
        return Bound(program.facts.text.max_length, program.facts.text.why)
    stated = getattr(tokenizer, "model_max_length", NO_LIMIT)
    return Bound(int(stated) if stated < NO_LIMIT else None, "the tokenizer's model_max_length")
