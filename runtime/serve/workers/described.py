"""A model as its facts and its tokenizer, which is all that reading texts and writing answers takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace.backends.interface import Memory
from headrace.ir import Layout, Program
from headrace.ir.serialize import decode
from headrace.runtime.artifact.saved_model import facts, keep_tokenizer, kept_tokenizer
from headrace.runtime.model import CompiledModel
from headrace.runtime.state.model_state import ModelState
from headrace.target import Target, parse_target


def describe(models: Mapping[str, CompiledModel], folder: Path) -> dict[str, dict[str, Any]]:
    """What another process makes models of, by their names; tokenizers are written to a folder."""
    return {name: _described(model, folder / str(at)) for at, (name, model) in enumerate(models.items())}


def _described(model: CompiledModel, folder: Path) -> dict[str, Any]:
    backend = model.engine.backend
    alone, memory = model.program.facts.text.chat is None, isinstance(backend, Memory)
    folder.mkdir()
    return facts(model, backend) | {
        "folder": str(folder),
        "tokenizer": keep_tokenizer(folder, model.tokenizer, alone=alone),
        "target": str(backend.target),
        "layout": backend.layout.value,
        "step_tokens": backend.step_tokens,
        "pools": backend.pools if isinstance(backend, Memory) else None,
        "memory": memory,
    }


def described(made: Mapping[str, Any]) -> CompiledModel:
    """The model that `describe` wrote of: it reads texts and knows its tasks, and runs nothing."""
    kind = Stepping if made["memory"] else Elsewhere
    backend = kind(parse_target(made["target"]), Layout(made["layout"]), made["step_tokens"], bool(made["pools"]))
    return CompiledModel(
        decode(Program, made["program"]), backend, kept_tokenizer(Path(made["folder"]), made["tokenizer"]),
        task=made["task"], max_length=made["max_length"], token_budget=made["token_budget"], state=ModelState,
    )  # fmt: skip


@dataclass
class Elsewhere:
    """The backend of another process: what it is can be asked, and nothing runs."""

    target: Target
    layout: Layout
    step_tokens: int
    pools: bool
    suffix: str = ""
    dtypes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    runs_code: bool = False
    fills_rows: bool = False

    def __post_init__(self) -> None:
        """It is called as its kind is."""
        self.name = self.target.kind

    def layout_of(self, program: Program) -> Layout:
        """As it was said to lie."""
        return self.layout

    def check(self, compiles: bool) -> None:
        """The other process did."""

    def compile(self, program: Program) -> NoReturn:
        """Not here."""
        raise AssertionError(f"{program.source.name} runs in another process")

    def load(self, path: Path, program: Program) -> NoReturn:
        """Not here."""
        self.compile(program)

    def feed(self, inputs: Any) -> NoReturn:
        """Not here."""
        raise AssertionError("the other process feeds its executables")

    def fetch(self, output: Any) -> NoReturn:
        """Not here."""
        raise AssertionError("the other process reads what its executables return")


@dataclass
class Stepping(Elsewhere):
    """One that makes tokens too."""

    ahead: bool = False
    tensors: bool = False

    def widest_row(self, dtype: str) -> NoReturn:
        """Not here."""
        raise AssertionError(f"the other process keeps the rows, in {dtype}")

    def cache_bytes(self) -> NoReturn:
        """Not here."""
        raise AssertionError("the other process has the caches")

    def resized(self, array: Any, shape: tuple[int, ...], dtype: str) -> NoReturn:
        """Not here."""
        self.cache_bytes()
