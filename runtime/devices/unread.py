"""Texts that go to a device as they are: its process tokenises its share, while others tokenise theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.places import Numbers, Places
from headrace.runtime.text.bounds import Bound
from headrace.runtime.text.encoded import Encoded
from headrace.runtime.text.prefetch import Sizes, in_parts
from headrace.runtime.text.texts import Texts
from headrace.runtime.text.truncation import about, first_size


@dataclass(frozen=True, eq=False)
class Unread:
    """Texts that a device's process tokenises itself.

    Attributes:
        texts: as `Texts.ahead` takes them.
        lengths: about how many tokens each has, int64 [n].
        bound: of the reader that they were given to.
        options: those of `Texts.ahead`.
        told: called here, by their numbers in the call, with all texts that were truncated, where nobody asked for it.
    """

    texts: list[Any]
    lengths: NDArray[np.int64]
    bound: Bound
    options: dict[str, Any]
    told: Callable[[list[int]], None] | None = None

    def take(self, places: Numbers) -> Unread:
        """The texts at those places, as they are sent."""
        texts = [self.texts[place] for place in places.tolist()]
        return replace(self, texts=texts, lengths=self.lengths[places], told=None)

    def __len__(self) -> int:
        """How many texts."""
        return len(self.texts)

    def read(self, reader: Texts, places: Places) -> Iterator[Sequence[Encoded]]:
        """Their token ids, in parts; errors as of `Texts.ahead`."""
        return reader.within(self.bound).ahead(self.texts, places=places, **self.options)


def unread(
    reader: Texts, texts: Sequence[Any], truncates: bool, *, places: Places, sizes: Sizes, truncate: Any, **options: Any
) -> Iterator[Unread]:
    """What `reader.ahead` takes, in parts, unread.

    Args:
        truncates: whether longer texts are truncated where `truncate` does not say.

    Raises:
        InputError: an option that the reader refuses, whatever the texts are; others come of who reads them.
    """
    list(reader.ahead([], places=places, truncate=truncate, **options))
    most = None if reader.length is None else first_size(reader.length)
    lengths = np.fromiter((about(text, most) for text in texts), np.int64, len(texts))
    chosen = {"truncate": truncates if truncate is None else truncate, "sizes": sizes, **options}

    def told(lost: list[int]) -> None:
        reader.warn_of_cuts(lost, len(texts), places)

    for span in in_parts(lengths.tolist(), sizes):
        some = list(texts[span.start : span.stop])
        yield Unread(some, lengths[span.start : span.stop], reader.bound, chosen, told if truncate is None else None)
