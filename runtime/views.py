"""What a model shows of itself where it is the last line of a cell."""

from __future__ import annotations

from html import escape
from pathlib import PurePath


def line(kind: str, name: str, said: str) -> str:
    """As `repr` writes it: `<CompiledModel minilm: embed, token_embed; cpu, float32>`."""
    return f"<{kind} {PurePath(name).name or name}: {said}>"


def frame(page: str) -> str:
    """A page inside another, of which it changes nothing: what a notebook shows."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="" title="Headrace" '
        'style="width: 100%; height: 36em; border: 0"></iframe>'
    )
