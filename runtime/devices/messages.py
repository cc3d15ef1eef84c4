"""What the process of a model and those of its devices tell one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.devices.unread import Unread
from headrace.runtime.engine.request import Requests, gathered
from headrace.runtime.places import Numbers
from headrace.runtime.tasks.generate import Part as Written

# Some requests of a call.
Share = Requests | Unread


def lengths_of(share: Share) -> NDArray[np.int64]:
    """Tokens of each request, int64 [n]; of texts, about."""
    if isinstance(share, list):
        return np.fromiter((one.length for one in share), np.int64, len(share))
    return share.lengths


def taken(share: Share, places: Numbers) -> Share:
    """The requests at those places."""
    return [share[place] for place in places.tolist()] if isinstance(share, list) else share.take(places)


def whole(part: Any) -> Share:
    """A part of a call's requests, as an engine is given it."""
    return part if isinstance(part, Unread) else gathered(part)


@dataclass(frozen=True)
class Prepare:
    """Have what answers several tasks in one pass ready; the reply is its program, without the graph."""

    call: int
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Save:
    """Write an executable by the key of its lane to a file."""

    call: int
    lane: str
    path: str


@dataclass(frozen=True)
class Answer:
    """Requests are coming, which several tasks are to answer in one pass.

    Attributes:
        count: how many are coming at most.
        batch_size: in a step at most.
    """

    call: int
    tasks: tuple[str, ...]
    count: int
    batch_size: int | None


@dataclass(frozen=True)
class Part:
    """Some of them; `numbers` is what messages call each, int64 [n]."""

    call: int
    requests: Share
    numbers: Numbers


@dataclass(frozen=True)
class End:
    """There are no more requests; or nobody waits for the answers any longer."""

    call: int
    aborted: bool = False


@dataclass(frozen=True)
class Describe:
    """Say what a lane runs, by its key; the reply is its program, without the graph."""

    call: int
    lane: str


@dataclass(frozen=True)
class Write:
    """Go on from prompts, each token ids or an array, by the options of `generate`."""

    call: int
    prompts: list[Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """Some more of an answer, whose prompt is counted among those that the device was given."""

    call: int
    part: Written


@dataclass(frozen=True)
class Reply:
    """What was asked for, whatever it is."""

    call: int
    value: Any = None


@dataclass(frozen=True)
class Failed:
    """What was raised, and where."""

    call: int
    error: BaseException
    trace: str


@dataclass(frozen=True)
class Taken:
    """The device has begun with a part, and has room for another."""

    call: int


@dataclass(frozen=True)
class Rows:
    """Answers to some requests, by their places among those that the device was given, an entry a task."""

    call: int
    requests: Numbers
    rows: list[Any]


@dataclass(frozen=True)
class Done:
    """All requests are answered; `lost` are those that were truncated."""

    call: int
    lost: tuple[int, ...]


@dataclass(frozen=True)
class Warned:
    """A warning that was given there."""

    text: str
