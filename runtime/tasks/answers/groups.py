"""Neighbours of one label as one part of the text, also where windows of the text overlap."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from headrace.runtime.tasks.answers.tagged import Unit

# The label of what is no entity.
OUTSIDE = "O"


@dataclass(frozen=True)
class Group:
    """Neighbouring units of one label.

    Attributes:
        opens: whether its window begins with it, in the midst of the text: what stands before it was not seen.
        breaks: whether its window ends with it, in the midst of the text.
    """

    units: tuple[Unit, ...]
    opens: bool = False
    breaks: bool = False

    @property
    def label(self) -> str:
        """Without what says that it begins or goes on.

        The pipeline cuts at the first hyphen whatever stands before it, so "PER-x" is served as "x".
        """
        return self.units[0].label.split("-", 1)[-1]

    @property
    def score(self) -> float:
        """The mean of its units'."""
        return float(np.mean([unit.score for unit in self.units]))

    @property
    def places(self) -> range:
        """The numbers of its units among those of the text."""
        return range(self.units[0].place, self.units[-1].place + 1)

    @property
    def start(self) -> int:
        """Its first character."""
        return self.units[0].start

    @property
    def end(self) -> int:
        """The character past its last."""
        return self.units[-1].end


def grouped(windows: Sequence[Sequence[Unit]], ignored: Collection[str]) -> list[Group]:
    """The groups of a text in order, none of a label that is ignored and no two of one place.

    Args:
        windows: the units of each window. Of two that overlap the longer group stays, of like ones the surer, as in
            transformers' pipeline; but what one window cut off goes on in the next.
    """
    found = [group for place in range(len(windows)) for group in _of_window(windows, place)]
    kept = [group for group in found if group.label not in ignored]
    if len(windows) == 1:
        return kept
    # What is no entity fills a window from end to end: it would go before every entity that it overlaps.
    named = list(_settled(group for group in kept if group.label != OUTSIDE))
    rest = _uncovered((group for group in kept if group.label == OUTSIDE), named)
    return sorted([*named, *rest], key=lambda group: group.places.start)


def surest(windows: Sequence[Sequence[Unit]]) -> list[Unit]:
    """Each unit once, from the window in which it is the surest."""
    best = dict[int, Unit]()
    for unit in chain.from_iterable(windows):
        if unit.place not in best or unit.score > best[unit.place].score:
            best[unit.place] = unit
    return [best[place] for place in sorted(best)]


def _of_window(windows: Sequence[Sequence[Unit]], place: int) -> list[Group]:
    found = list(_runs(windows[place]))
    if found and place:
        found[0] = replace(found[0], opens=True)
    if found and place + 1 < len(windows):
        found[-1] = replace(found[-1], breaks=True)
    return found


def _runs(units: Iterable[Unit]) -> Iterator[Group]:
    """Neighbours of one label, each group up to the next that says it begins one."""
    group: list[Unit] = []
    for unit in units:
        if group and (unit.label.startswith("B-") or _kind(unit.label) != _kind(group[-1].label)):
            yield Group(tuple(group))
            group = []
        group.append(unit)
    if group:
        yield Group(tuple(group))


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _settled(groups: Iterable[Group]) -> Iterator[Group]:
    """The groups of all windows with none over another. Of one window, those of a character's bytes may share it."""
    last: Group | None = None
    for group in sorted(groups, key=lambda group: group.places.start):
        if last is None:
            last = group
        elif _goes_on(last, group):
            more = [unit for unit in group.units if unit.place >= last.places.stop]
            last = replace(group, units=(*last.units, *more), opens=last.opens)
        elif group.places.start < last.places.stop:
            last = max(last, group, key=lambda one: (one.end - one.start, len(one.units), one.score))
        else:
            yield last
            last = group
    if last is not None:
        yield last


def _goes_on(last: Group, group: Group) -> bool:
    """Whether a window cut one part of the text in two, of which these are the beginning and the end.

    Where no window saw both sides, what the second says of beginning a group counts for nothing.
    """
    first, before, after = group.units[0], last.places, group.places
    if not (last.breaks or group.opens) or _kind(first.label) != _kind(last.units[-1].label):
        return False
    if after.start < before.stop:
        return before.start < after.start and before.stop < after.stop
    unseen = last.breaks and group.opens
    return after.start == before.stop and (unseen or not first.label.startswith("B-"))


def _uncovered(groups: Iterable[Group], named: Sequence[Group]) -> Iterator[Group]:
    """What is no entity in any window, as groups of neighbours."""
    taken = {place for group in named for place in group.places}
    free = [unit for unit in surest([group.units for group in groups]) if unit.place not in taken]
    group: list[Unit] = []
    for unit in free:
        if group and unit.place != group[-1].place + 1:
            yield Group(tuple(group))
            group = []
        group.append(unit)
    if group:
        yield Group(tuple(group))
