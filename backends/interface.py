"""What a backend is and what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike, NDArray

from headrace.ir import CacheDtype, HeldWeights, Layout, Program
from headrace.target import Target


class Executable(Protocol):
    """A program of one task, or of several that one pass answers, ready to run on any batch and sequence length."""

    calls: int
    """How often it ran: what ran is this executable, not the eager model."""

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """The program's output for inputs int64 [batch, sequence], by name; both as `Backend.feed` makes them.

        Of a program of several outputs, a tuple of them in the order of its signature.
        """
        ...

    def save(self, path: Path) -> None:
        """Write the executable to one file that `Backend.load` reads back."""
        ...


@runtime_checkable
class Packer(Protocol):
    """An executable that holds weights in formats of its own."""

    weights: tuple[HeldWeights, ...]
    """The formats, the one of most bytes first."""


@runtime_checkable
class WarmsUp(Protocol):
    """An executable of which the first calls of a size take longer than those that follow."""

    def warm_up(self) -> None:
        """Do ahead what those would do beside running, for the sizes that are likely to come."""
        ...


class Backend(Protocol):
    """One target: says what it needs, and turns programs into executables."""

    name: str
    """The kind of the target."""
    suffix: str
    """The file suffix of a saved executable."""
    dtypes: tuple[str, ...]
    """The dtypes that it runs, the default first."""
    libraries: tuple[str, ...]
    """The libraries whose very version its saved executables need."""
    runs_code: bool
    """Whether loading a saved executable runs machine code that lies in it."""
    layout: Layout
    """How sequences should lie; it compiles padded programs all the same, where a program admits nothing else."""
    fills_rows: bool
    """Whether packed rows are filled to one of few lengths, as what is captured or tuned for a length wants."""

    @property
    def target(self) -> Target:
        """The target that it was asked for as."""
        ...

    @property
    def step_tokens(self) -> int:
        """Padded tokens in one step, where the caller sets no budget."""
        ...

    def layout_of(self, program: Program) -> Layout:
        """How the sequences of a program should lie: `layout`, but where its facts say that another is faster."""
        ...

    def check(self, compiles: bool) -> None:
        """Raise a TargetError that names the remedy where the target cannot run, or compile, here."""
        ...

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, Any]:
        """The inputs of a step as its executables take them."""
        ...

    def fetch(self, output: Any) -> ArrayLike:
        """One output of an executable, in float32 on the host; `np.asarray` waits for it where the copy takes time."""
        ...

    def compile(self, program: Program) -> Executable:
        """Make the executable of a program whose stage is LOWERED."""
        ...

    def load(self, path: Path, program: Program) -> Executable:
        """Read back what `Executable.save` wrote."""
        ...


@runtime_checkable
class Memory(Protocol):
    """A backend that holds what lives between steps: the caches of cached programs, as its executables take them."""

    ahead: bool
    """Whether executables of cached programs also take ids that lie on the target, and return before it is done."""
    pools: bool
    """Whether it runs cached programs that pool the rows of a text as its pieces come."""
    tensors: bool
    """Whether caches and outputs are tensors of torch, else they are arrays of numpy."""

    def widest_row(self, dtype: str) -> int:
        """Of rows that are kept in place of the keys and values that are maps of them, the widest; 0 for none.

        Args:
            dtype: of the program.
        """
        ...

    def cache_bytes(self) -> int:
        """What all caches of a program may take, where the caller sets no bound."""
        ...

    def resized(self, array: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of that shape that begins as `array` does, None for nothing; the rest of it may hold any numbers."""
        ...


@runtime_checkable
class CacheKeeper(Protocol):
    """A backend that says in what it runs cached programs that keep keys and values in fewer bits."""

    cache_dtypes: tuple[CacheDtype, ...]


@runtime_checkable
class Quantizer(Protocol):
    """A backend that runs programs whose linear layers multiply in fewer bits; the others run none."""

    schemes: tuple[str, ...]
    """Those of `Quantized` that it runs."""

    def require_scheme(self, scheme: str, dtype: str) -> None:
        """Raise a TargetError that names the remedy where the target does not run a scheme of `Quantized` here.

        Args:
            dtype: of the program's other operations.
        """
        ...


@dataclass(frozen=True)
class Choice:
    """One decision: what it is about, what is done, and why."""

    about: str
    what: str
    why: str


@runtime_checkable
class Planner(Protocol):
    """A backend that says beforehand what it will do."""

    def plan(self, program: Program) -> tuple[Choice, ...]:
        """The decisions about a program of one task."""
        ...


@runtime_checkable
class KernelMaker(Protocol):
    """A backend that has kernels of ours, which compile without a device."""

    def kernels(self, program: Program) -> list[Any]:
        """The kernels that a program runs, each a `headrace.backends.kernels.compile.aot.Kernel`."""
        ...
