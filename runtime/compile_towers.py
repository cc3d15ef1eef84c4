"""Both towers of a model that compares texts with images, each compiled by itself."""

from __future__ import annotations

from typing import Any

import torch

from headrace import debug
from headrace.backends import backend as find_backend
from headrace.backends.interface import Backend
from headrace.frontend.load.checkpoint import Checkpoint, load
from headrace.frontend.load.two_towers import split
from headrace.ir import Task
from headrace.runtime.api import Lowered, Source, trace_loaded
from headrace.runtime.dtypes import dtype_for
from headrace.runtime.model import CompiledModel
from headrace.runtime.progress import bar
from headrace.runtime.two_towers import TwoTowers
from headrace.utils.compiler_lock import in_turn
from headrace.utils.gc_freeze import sparing_the_old


@in_turn
def compile_towers(
    model: Source,
    *,
    target: str = "auto",
    dtype: str | torch.dtype = "auto",
    tokenizer: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool | None = None,
) -> TwoTowers:
    """Compile both towers of a model that compares texts with images, such as CLIP's and SigLIP's.

    Arguments as of `compile`.

    Raises:
        LoadError: it is no such model.
        HeadraceError: a tower cannot be traced, typed or run here.
    """
    backend = find_backend(target)
    with bar("Loading the model", shown=progress), sparing_the_old(), debug.stage("load"):
        checkpoint = load(
            model, dtype=dtype_for(dtype, model, backend), tokenizer=tokenizer, revision=revision,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    towers = split(checkpoint)
    text, image = (_tower(tower, backend, progress) for tower in (towers.text, towers.image))
    return TwoTowers(text, image, towers.scale, towers.bias)


def _tower(checkpoint: Checkpoint, backend: Backend, progress: bool | None) -> CompiledModel:
    traced = trace_loaded(checkpoint, (), None, Task.EMBED)
    lowered = Lowered(traced.analysed, backend, traced.tokenizer, traced.side_files, traced.brought)
    return lowered.compile(task=Task.EMBED, progress=progress)
