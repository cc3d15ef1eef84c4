"""How often torch compiles: what a test counts that says one graph serves every shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Compilations:
    """The graphs that Inductor lowered, ahead of time or not, and those that torch.compile captured."""

    def __init__(self) -> None:
        self.lowered, self._before = 0, _captured()

    @property
    def count(self) -> int:
        """Both: what is in Inductor's cache is captured and not lowered, what is ahead of time the other way round."""
        return self.lowered + _captured() - self._before


@contextmanager
def compilations() -> Iterator[Compilations]:
    """Count until the end of the block, in which nothing is read from the cache of compiled code."""
    from torch._inductor.graph import GraphLowering

    made, begin = Compilations(), GraphLowering.__init__

    def counted(self: Any, *args: Any, **options: Any) -> None:
        made.lowered += type(self) is GraphLowering  # not the parts of one, as the inside of a loop
        begin(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CODE_CACHE", "off")
        patch.setattr(GraphLowering, "__init__", counted)
        yield made


def _captured() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
