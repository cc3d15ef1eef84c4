"""What the process of a device makes its model of: a saved model's folder, or a program that is sent to it."""

from __future__ import annotations

import io
import logging
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace import graphs
from headrace.backends import backend
from headrace.backends.interface import Backend
from headrace.frontend.compat import operators
from headrace.ir import Program
from headrace.ops import attention, cached, linear_recurrence, lstm, recurrent, stateful  # noqa: F401 - a graph that is read needs its operators
from headrace.runtime.devices.memory import mapped_privately
from headrace.runtime.devices.rank import join
from headrace.runtime.model import CompiledModel
from headrace.runtime.state.model_state import ModelState
from headrace.target import Target

ALIGNED = 64


@dataclass(frozen=True)
class Origin:
    """A device's part in the work.

    Attributes:
        target: the device.
        rank: which of those that run one model together; 0 answers.
        ranks: how many do.
        meeting: the address at which they find one another; empty where it runs the model alone.
    """

    target: Target
    rank: int = 0
    ranks: int = 1
    meeting: str = ""

    def model(self) -> CompiledModel:
        """The device's own.

        Raises:
            HeadraceError: it cannot be made here.
        """
        split = join(self.target, self.rank, self.ranks, self.meeting) if self.ranks > 1 else None
        made = self._made()
        made.engine.compiler.split = split
        return made

    def _made(self) -> CompiledModel:
        raise NotImplementedError

    def backend(self) -> Backend:
        """What compiles and runs on the device."""
        return backend(self.target)


@dataclass(frozen=True)
class Folder(Origin):
    """What was saved. `trust` is as of `headrace.load`."""

    folder: str = ""
    trust: bool | None = None

    def _made(self) -> CompiledModel:
        from headrace.runtime.artifact.saved_model import load

        return load(self.folder, str(self.target), self.trust)


@dataclass(frozen=True)
class Place:
    """Where a weight lies in a file of weights, by its name in the graph's state."""

    begin: int
    dtype: str
    shape: tuple[int, ...]
    parameter: bool


@dataclass(frozen=True)
class Weights:
    """The weights of a graph in a file in memory, which every process maps and none copies."""

    file: int
    size: int
    places: Mapping[str, Place]

    def close(self) -> None:
        """Let go of the file; what is mapped stays."""
        os.close(self.file)

    def read(self) -> dict[str, Tensor]:
        """The weights by their names: tied ones are one."""
        memory = mapped_privately(self.file, self.size)
        self.close()
        made: dict[Place, Tensor] = {}
        for place in self.places.values():
            if place not in made:
                made[place] = _weight(memory, place)
        return {name: made[place] for name, place in self.places.items()}


@dataclass(frozen=True)
class Sent(Origin):
    """An analysed program.

    Attributes:
        program: without its graph.
        graph: that, exported, without its weights.
        options: those of `CompiledModel`.
    """

    program: Program | None = None
    graph: bytes = b""
    weights: Weights | None = None
    tokenizer: Any = None
    state: type[ModelState] | None = None
    options: Mapping[str, Any] | None = None

    def _made(self) -> CompiledModel:
        """Of the graph and its weights, put together again."""
        assert self.program is not None
        assert self.weights is not None
        operators.register(self.program)
        # Up to 2.11 torch warns of every weight that its file says the form of alone.
        logging.getLogger("torch.export.pt2_archive._package").setLevel(logging.ERROR)
        exported = torch.export.load(io.BytesIO(self.graph))
        exported.state_dict.update(self.weights.read())
        return CompiledModel(
            self.program.with_(exported=exported), self.backend(), self.tokenizer, state=self.state,
            **(self.options or {}),
        )  # fmt: skip


def without_weights(program: Program) -> bytes:
    """The graph of a program, exported, that holds of each weight its form alone."""
    bare = graphs.rewrite(program.graph, lambda graph: None)
    bare.state_dict.update({name: _as(held.detach().to("meta"), held) for name, held in bare.state_dict.items()})
    file = io.BytesIO()
    bare.example_inputs = None
    torch.export.save(bare, file)
    return file.getvalue()


def weights_of(program: Program) -> Weights:
    """Its weights, copied into a file in memory; one that is there by two names once."""
    places, begins, end = dict[str, Place](), dict[Any, int](), 0
    held = program.graph.state_dict
    for name, weight in held.items():
        key = (weight.data_ptr(), weight.dtype, weight.shape, weight.stride())
        if key not in begins:
            begins[key] = end
            end = -(-(end + weight.nbytes) // ALIGNED) * ALIGNED
        dtype = str(weight.dtype).removeprefix("torch.")
        places[name] = Place(begins[key], dtype, tuple(weight.shape), isinstance(weight, torch.nn.Parameter))
    file, size = os.memfd_create("headrace-weights", os.MFD_CLOEXEC), max(end, 1)
    os.ftruncate(file, size)
    memory = mmap.mmap(file, size)
    for name, place in places.items():
        _weight(memory, place).detach().copy_(held[name].detach())
    return Weights(file, size, places)


def _weight(memory: mmap.mmap, place: Place) -> Tensor:
    dtype, count = getattr(torch, place.dtype), math.prod(place.shape)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=place.begin) if count else torch.empty(0)
    shaped = flat.to(dtype).reshape(place.shape)
    return torch.nn.Parameter(shaped, requires_grad=False) if place.parameter else shaped


def _as(made: Tensor, like: Tensor) -> Tensor:
    return torch.nn.Parameter(made, requires_grad=False) if isinstance(like, torch.nn.Parameter) else made
