"""What every method of a task needs of the model that it is a method of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from headrace.ir import Program, Task
from headrace.runtime.tasks.interface import Call


class Calling(ABC):
    """A compiled model as what makes calls of its engine."""

    program: Program
    _tokenizer: Any

    @abstractmethod
    def _call(
        self, task: Task, truncate: bool | str | None = None, batch_size: int | None = None,
        progress: bool | None = None, max_length: int | None = None, **unknown: Any,
    ) -> Call:  # fmt: skip
        """The call of a task with the options that every task has.

        Raises:
            InputError: an option that no task has.
        """
