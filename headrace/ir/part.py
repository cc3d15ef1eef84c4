"""What the parts of a program check of themselves when they are made: facts that no model has, whatever its graph."""

from __future__ import annotations

from collections.abc import Iterable


class PartError(ValueError):
    """Facts that no model has: names the rule, the fact and what is wrong with it."""


def require(rule: str, breaches: Iterable[tuple[bool, str, str]]) -> None:
    """Refuse a part.

    Args:
        breaches: whether one is there, the fact that breaks the rule, and what is wrong with it.

    Raises:
        PartError: with every breach, not the first.
    """
    met = [f"{rule}: {fact}: {what}" for broken, fact, what in breaches if broken]
    if met:
        raise PartError("; ".join(met))
