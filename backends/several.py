"""Several devices of one host as one target: what a process of its own runs on each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import ArrayLike, NDArray

from headrace.backends.interface import Backend, CacheKeeper, Executable, Memory, Quantizer
from headrace.errors import InputError, TargetError
from headrace.ir import Layout, Program
from headrace.target import Target


class Parallel(StrEnum):
    """How several devices share the work.

    DATA: each has the whole model and answers some of the requests.
    TENSOR: each has a part of every layer, and all of them answer each request together (arXiv 1909.08053).
    """

    DATA = "data"
    TENSOR = "tensor"


def read_parallel(given: str | None, target: Target) -> Parallel:
    """How the devices of a target share the work; None is DATA.

    Raises:
        InputError: no such way, or the target names no several devices.
    """
    if given is None:
        return Parallel.DATA
    if not isinstance(given, str) or given not in list(Parallel):
        raise InputError(f"parallel is {given!r}; choose from {', '.join(Parallel)}.")
    if len(target.devices) < 2:
        raise InputError(
            f'parallel="{given}" says how several devices share the work, and the target {target} names '
            f"{'one' if target.devices else 'none'}. Name several, as in cuda:0-1, or leave parallel out."
        )
    return Parallel(given)


class Several:
    """A target of several devices: its facts are those of one of them, and it runs nothing in this process."""

    def __init__(self, target: Target, each: tuple[Target, ...], one: Backend, parallel: Parallel) -> None:
        """Check nothing yet.

        Args:
            target: as it was asked for.
            each: the target of each process.
            one: the backend of the first.
        """
        self.target, self.each, self.parallel = target, each, parallel
        self._one = one
        self.name, self.suffix, self.dtypes = one.name, one.suffix, one.dtypes
        self.decodes = isinstance(one, Memory) and parallel is Parallel.DATA
        splits = parallel is Parallel.TENSOR  # whose passes come after those of the caches
        self.cache_dtypes = one.cache_dtypes if isinstance(one, CacheKeeper) and not splits else ()
        self.libraries, self.runs_code, self.layout = one.libraries, one.runs_code, one.layout
        self.fills_rows = one.fills_rows

    @property
    def step_tokens(self) -> int:
        """Of all devices together, where each answers requests of its own."""
        return self._one.step_tokens * self.replicas

    @property
    def replicas(self) -> int:
        """How many whole models there are."""
        return len(self.each) if self.parallel is Parallel.DATA else 1

    def layout_of(self, program: Program) -> Layout:
        """As the first's."""
        return self._one.layout_of(program)

    def check(self, compiles: bool) -> None:
        """The first device must run here; each process checks its own."""
        self._one.check(compiles)

    @property
    def schemes(self) -> tuple[str, ...]:
        """Those of one device."""
        return self._one.schemes if isinstance(self._one, Quantizer) else ()

    def require_scheme(self, scheme: str, dtype: str) -> None:
        """Raise a TargetError where one device would, or where the model would be split.

        Raises:
            TargetError: says so.
        """
        if not isinstance(self._one, Quantizer):
            raise TargetError(f'The target {self.name} does not run quantize="{scheme}". Leave quantize out.')
        if self.parallel is Parallel.TENSOR:
            raise TargetError(
                f'quantize="{scheme}" is for whole models, and parallel="{self.parallel}" splits this one over '
                f'{self.target}. Leave one of them out, or pass parallel="{Parallel.DATA}".'
            )
        self._one.require_scheme(scheme, dtype)

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, Any]:
        """Nothing is fed here."""
        self._runs_elsewhere()

    def fetch(self, output: Any) -> ArrayLike:
        """Nothing is fetched here."""
        self._runs_elsewhere()

    def compile(self, program: Program) -> Executable:
        """Nothing is compiled here."""
        self._runs_elsewhere()

    def load(self, path: Path, program: Program) -> Executable:
        """What each process reads for itself."""
        return Elsewhere()

    def _runs_elsewhere(self) -> NoReturn:
        raise AssertionError(f"{self.target} runs in processes of its own")


class Elsewhere:
    """An executable that the processes hold."""

    calls = 0

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Nothing runs here."""
        raise AssertionError("it runs in another process")

    def save(self, path: Path) -> None:
        """Nothing is held here."""
        raise AssertionError("it is held by another process")
