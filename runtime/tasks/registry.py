"""The modules that answer tasks: each is named as its task is, and is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from headrace.ir import TASK_RULES, Task
from headrace.runtime.tasks.interface import Answering, Command


def answering(task: Task) -> Answering:
    """How a task is answered."""
    found: Answering = importlib.import_module(f"headrace.runtime.tasks.{task}").TASK
    return found


def commands() -> Iterator[tuple[Task, Answering, Command]]:
    """The tasks that have a command, in order."""
    for task in TASK_RULES:
        if command := (found := answering(task)).command:
            yield task, found, command
