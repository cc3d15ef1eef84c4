"""How texts are read, and some of them on the way."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.runtime.places import Places
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.truncation import Piece, Strategy


@dataclass(frozen=True)
class Reading:
    """How texts are read.

    Attributes:
        cuts: how longer ones are truncated, None where they are refused.
        pairs: whether they are pairs.
        before: the prompt that goes before each; `prompted` where the caller named one.
        offsets: whether to say where the tokens stand.
        places: where they stand in the caller's list.
        cuttable: whether the caller has an option by which longer ones are.
    """

    cuts: Strategy | None
    pairs: bool
    before: str
    prompted: bool
    offsets: bool
    places: Places
    cuttable: bool = True


@dataclass(frozen=True)
class Part:
    """Some of the requests that are read.

    Attributes:
        numbers: each text's, in messages.
        requests: each text, or the two of each pair.
        pieces: what the tokenizer reads of each.
        given: the requests that came as token ids, by their place among all of the part.
        cuttable: as of `Reading`.
    """

    numbers: list[int]
    requests: list[tuple[str, ...]]
    pieces: list[Piece]
    given: dict[int, Encoded]
    cuttable: bool = True

    def whole(self, texts: list[Encoded]) -> list[Encoded]:
        """The texts, and in their places the requests that came as token ids."""
        if not self.given:
            return texts
        coming = iter(texts)
        return [self.given.get(i) or next(coming) for i in range(len(texts) + len(self.given))]
