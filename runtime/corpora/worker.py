"""A model that embeds batches of tables on any engine that runs Python: each worker makes its own of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ir import Task
from headrace.runtime.corpora.embed import read_rows, vectors_of
from headrace.runtime.corpora.sources import Lacking
from headrace.runtime.model import CompiledModel
from headrace.runtime.tasks.embed import require_dimensions
from headrace.runtime.text.prompts import one_prompt
from headrace.tasks import answering


class Embedder:
    """Called with a batch of columns, it adds those of the vectors and of the reasons why some rows have none.

    It pickles as the folder's path and its options, and reads the model when it is first called. On Ray Data:

        dataset.map_batches(headrace.Embedder, fn_constructor_args=("OUT",), compute=ray.data.ActorPoolStrategy(size=2))
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        column: str = "text",
        target: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        trust: bool | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: what `save` or `export_onnx` wrote, at that path on every node.
            column: the one that holds the texts.
            target: as of `headrace.load`; None takes the one that it was saved for.
            trust: run a model that was not saved on the worker's machine: it is a program.

        Other arguments are `CompiledModel.embed`'s.
        """
        self._given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}

    def __reduce__(self) -> tuple[Any, ...]:
        """Its arguments."""
        return _made, (self._given,)

    @cached_property
    def model(self) -> CompiledModel:
        """The worker's own."""
        import headrace

        options = {"trust": self._given["trust"]}
        if self._given["target"] is not None:
            options["target"] = self._given["target"]
        return headrace.load(self._given["folder"], **options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with two more columns.

        Args:
            batch: columns by name, each an array or a list; that of the texts holds str, or None.

        Returns:
            What was given, `embedding`, float32 [n, d] and NaN where there is an error, and `error`, str or None [n].

        Raises:
            KeyError: there is no column of texts.
        """
        given, call = self._given, self.model.call(Task.EMBED)
        require_dimensions(given["dimensions"], answering(call.program, Task.EMBED).width)
        rows = [row if isinstance(row, str) else Lacking("no string") for row in batch[given["column"]]]
        cuts = call.program.facts.text.truncates if given["truncate"] is None else given["truncate"]
        prompt = one_prompt(call.program, given["prompt"], given["prompt_name"])
        read = read_rows(call, rows, prompt, cuts)
        vectors, errors = vectors_of(call, read, len(rows), given["normalize"], given["dimensions"])
        vectors[[error is not None for error in errors]] = np.nan
        return {**batch, "embedding": vectors, "error": _objects(errors)}


def _objects(values: list[str | None]) -> NDArray[np.object_]:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _made(given: dict[str, Any]) -> Embedder:
    folder = given["folder"]
    return Embedder(folder, **{name: value for name, value in given.items() if name != "folder"})
