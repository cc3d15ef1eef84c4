"""What a process of `make coverage` does: build one model, measure its row."""

from __future__ import annotations

import logging
import signal
import warnings
from typing import Any

import torch

from tests.coverage.configs import require_runs, tiny_model
from tests.coverage.named import NAMED
from tests.coverage.rows import Row, measure

# A row that takes longer, of the process's own time, is a fact about it: nobody waits for a compile of a tiny model.
SECONDS = 240


class TooLong(BaseException):
    """A row's time is over. No `Exception`: code that tries one way after another would take it for one that failed."""


def quiet() -> None:
    """One thread a process, and no word of what transformers thinks of a random model."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)


def row_of(architecture: str, head: str) -> dict[str, Any]:
    """The record of one architecture under one head; `unbuilt` says why where transformers itself can't run it."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    row = Row(architecture, head)
    try:
        model = NAMED[architecture].build() if architecture in NAMED else tiny_model(architecture, head)
        require_runs(model)
    except (Exception, TooLong) as error:
        return row.as_json() | {"unbuilt": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return measure(row, model).as_json() | {"unbuilt": None}
    except TooLong as late:
        return row.as_json() | {"broken": f"TooLong: {late}", "unbuilt": None}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: Any) -> None:
    raise TooLong(f"nothing came of it in {SECONDS} s")
