"""A mask as a small picture: which keys a query sees, as a grid in SVG."""

from __future__ import annotations

from headrace.ir import AttentionSpec

CELLS, PITCH, SIZE = 16, 6, 5
# A window wider than this many cells is drawn as so many: each cell then stands for several tokens.
WINDOW_CELLS = 4


def tokens_a_cell(spec: AttentionSpec) -> int:
    """One, or as many as make the wider side of the window span a few cells."""
    widest = max(spec.window)
    return 1 if not spec.window.bounded or widest <= WINDOW_CELLS + 1 else -(-widest // WINDOW_CELLS)


def scale_words(spec: AttentionSpec) -> str:
    """What a cell stands for."""
    tokens = tokens_a_cell(spec)
    return "1 cell = 1 token" if tokens == 1 else f"1 cell = {tokens} tokens"


def description(spec: AttentionSpec) -> str:
    """The picture in words."""
    return f"Mask: {spec.mask}, window {spec.window}; rows are queries, columns keys; {scale_words(spec)}"


def picture(spec: AttentionSpec) -> str:
    """An SVG element whose filled cells are what a query (row) sees of the keys (columns).

    It is coloured by the classes `seen` and `unseen`, and says in words what it shows.
    """
    step, side = tokens_a_cell(spec), CELLS * PITCH - (PITCH - SIZE)
    places = [(row, column) for row in range(CELLS) for column in range(CELLS)]
    seen = [place for place in places if spec.sees(place[0] * step, place[1] * step)]
    unseen = [place for place in places if place not in set(seen)]
    return (
        f'<svg class="mask" viewBox="0 0 {side} {side}" role="img" aria-label="{description(spec)}">'
        f"<title>{description(spec)}</title>"
        f'<path class="unseen" d="{_cells(unseen)}"/><path class="seen" d="{_cells(seen)}"/></svg>'
    )


def _cells(places: list[tuple[int, int]]) -> str:
    return "".join(f"M{column * PITCH} {row * PITCH}h{SIZE}v{SIZE}h-{SIZE}z" for row, column in places)
