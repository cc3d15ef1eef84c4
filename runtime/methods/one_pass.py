"""Several tasks of one pass of the model over the same texts, and the token ids that it read."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.errors import InputError
from headrace.ir import TASK_RULES, Task
from headrace.runtime.tasks.interface import Call, Each
from headrace.runtime.tasks.registry import answering
from headrace.runtime.text.prompts import one_prompt

TOKEN_IDS = "token_ids"


def run(call: Call, texts: Any, tasks: Any, prompt: str | None, prompt_name: str | None) -> dict[str, Any]:
    """See `CompiledModel.run`."""
    named = _read_tasks(tasks)
    makers = {task: _maker(call, task) for task in named}
    call.engine.joint_lane(named, call.progress)
    listed = call.drawn(texts)
    requests: dict[int, Any] = {}
    found: dict[Task, list[Any]] = {task: [None] * len(listed) for task in named}
    chosen = one_prompt(call.program, prompt, prompt_name)
    for places, outputs in call.answered_together(named, listed, requests, prompt=chosen):
        for task, rows in zip(named, outputs, strict=True):
            for place, row in zip(places, rows, strict=True):
                found[task][place] = makers[task].answer(row, requests[place])
    ids = (
        {}
        if call.program.signature.arrays
        else {TOKEN_IDS: [requests[place].ids.copy() for place in range(len(listed))]}
    )
    return ids | {task.value: makers[task].join(found[task]) for task in named}


def _read_tasks(tasks: Any) -> tuple[Task, ...]:
    known = [task.value for task in TASK_RULES]
    listed = list(tasks) if isinstance(tasks, Iterable) and not isinstance(tasks, (str, bytes)) else []
    if not listed or not all(isinstance(task, str) and task in known for task in listed):
        raise InputError(
            f'tasks is {reprlib.repr(tasks)}; several names of tasks are accepted, as ("embed", "token_embed"). '
            f"The tasks are {', '.join(known)}."
        )
    return tuple(dict.fromkeys(Task(task) for task in listed))


def _maker(call: Call, task: Task) -> Each:
    each = answering(call.engine.require(task)).each
    if each is None:
        shared = [one.value for one in TASK_RULES if answering(one).each is not None]
        raise InputError(
            f"{task} reads its texts in a way of its own and shares no pass: ask for it alone, by model.{task}(...). "
            f"{', '.join(shared)} do."
        )
    return each(replace(call, task=task))
