"""The engine of a model whose target has several devices, and how its processes come to be."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.backends.several import Parallel, Several
from headrace.errors import ArtifactError
from headrace.ir import Program
from headrace.runtime.devices.engine import SharedEngine
from headrace.runtime.devices.origin import Folder, Origin, Sent, weights_of, without_weights
from headrace.runtime.devices.pool import Pool
from headrace.runtime.engine.lane import Lane
from headrace.runtime.state.model_state import ModelState
from headrace.runtime.text.tokenizer.own import own_copy


def shared_engine(
    program: Program,
    backend: Several,
    tokenizer: Any,
    *,
    lanes: Mapping[str, Lane] | None,
    state: type[ModelState],
    saved: tuple[str, str, bool | None] | None,
    options: Mapping[str, Any],
) -> SharedEngine:
    """The engine. Its processes read the folder of a saved model, or are sent the program.

    Args:
        tokenizer: that of the model, which is copied.
        saved: as `CompiledModel.read_from`.
        options: those of `CompiledModel`.
    """
    if saved is not None and backend.parallel is Parallel.TENSOR:
        raise ArtifactError(
            f"{saved[0]} holds executables of the whole model, which are not split when they are read. Load it without "
            'parallel="tensor", or compile the model with it.'
        )

    def make() -> Pool:
        if saved is not None:
            return Pool(_origins(backend, Folder(backend.each[0], folder=saved[0], trust=saved[2])))
        weights = weights_of(program)
        sent = Sent(
            backend.each[0], program=program.with_(exported=None), graph=without_weights(program), weights=weights,
            tokenizer=own_copy(tokenizer), state=state, options=options,
        )  # fmt: skip
        try:
            return Pool(_origins(backend, sent), [weights.file])
        finally:
            weights.close()

    return SharedEngine(program, backend, make, options.get("token_budget"), lanes, state)


def _origins(backend: Several, first: Origin) -> list[Origin]:
    """What each device's process begins with."""
    if backend.parallel is Parallel.DATA:
        return [replace(first, target=target) for target in backend.each]
    meeting, ranks = f"tcp://127.0.0.1:{_free_port()}", len(backend.each)
    return [
        replace(first, target=target, rank=rank, ranks=ranks, meeting=meeting)
        for rank, target in enumerate(backend.each)
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
