"""Find the function that loops over tokens: its calls of torch grow with the length of the text."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headrace.frontend.capture.recurrences import FUNCTIONS
from headrace.frontend.eager.borrowed import borrowed
from headrace.frontend.export.fixed_length import Line

# Far enough apart that a loop over blocks of a usual size turns more often, too, at the middle and again at the end.
SHORT, LONG = 3, 601
TORCH = str(Path(torch.__file__).parent)

# A function and its file.
Place = tuple[str, str]


class _Callers(TorchFunctionMode):
    """Counts torch calls by the function of the model's code that makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[Place]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(TORCH):
            frame = frame.f_back
        if frame is not None:
            self.counts[frame.f_code.co_qualname, Path(frame.f_code.co_filename).name] += 1
        return func(*args, **(kwargs or {}))


def culprit(model: nn.Module, inputs: Mapping[str, Tensor], longest: int | None, fixed: Line | None) -> str:
    """What fixes a length of the model, in words, as far as running it tells.

    Args:
        inputs: ones that it takes; loops are looked for where all are int64 [batch, sequence].
        longest: the longest sequence that it takes.
        fixed: the line that fixes a length, where one was found.
    """

    def run(length: int) -> None:
        with borrowed(model):
            model(**{name: value[:1, torch.arange(length) % value.shape[1]] for name, value in inputs.items()})

    try:
        plain = all(value.dim() == 2 and not value.is_floating_point() for value in inputs.values())
        found = looping(run, min(LONG, longest or LONG)) if plain else None
    except Exception:
        found = None  # the export failed already: what a longer text does to the model is beside the point
    if found is None or (fixed is not None and fixed[:2] != found):
        # What more calls are made of past some length need be no loop.
        does = "does for some lengths what it does not for others, and one graph has to do for all"
        return f"{fixed} {does}" if fixed is not None else "something in it fixes a length"
    return (
        f"{' in '.join(found)} loops over the tokens, which fixes their number. The loops that become operators are "
        f"those of {', '.join(sorted(FUNCTIONS))} and of a few classes"
    )


@torch.no_grad()
def looping(run: Callable[[int], object], longest: int = LONG) -> Place | None:
    """The function whose torch calls grow most with the length that is run; None where none do.

    A loop turns more often from any length to a longer one: code that takes another way past some length calls torch
    more often once, and code that halves calls it ever less.
    """
    counts = []
    for length in (SHORT, (SHORT + longest) // 2, longest):
        with _Callers() as callers:
            run(length)
        counts.append(callers.counts)
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    grown = {place: first[place] + second[place] for place in first if 2 * second[place] >= first[place]}
    if not grown:
        return None
    most: Place = max(grown, key=lambda place: grown[place])
    return most
