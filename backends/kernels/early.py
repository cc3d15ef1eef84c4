# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
"""Kernels that begin beside the one ahead of them and wait for it: NVIDIA's programmatic dependent launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import cuda

from headrace.backends.kernels.linear_few.op import EARLY as FAMILIES
from headrace.backends.kernels.tuning import family


@triton.jit
def wait_if(EARLY: tl.constexpr):
    """First of all in a kernel: let the next begin, and wait for what those ahead of this one make.

    Each waits, whatever it reads: what a kernel has ended, everything ahead of it has.
    """
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@dataclass(frozen=True)
class Early:
    """A kernel that has an argument EARLY, launched so."""

    kernel: Any

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """What launches it over a grid."""
        launch = self.kernel[grid]
        return lambda *arguments, **constants: launch(*arguments, **constants | {"EARLY": True, "launch_pdl": True})


@dataclass(frozen=True, eq=False)
class EarlyLaunch:
    """What an operator of ours does, by kernels that begin early: called as the operator is.

    Attributes:
        launch: takes the operator's arguments by position, and then the kernels.
    """

    launch: Callable[..., Any]
    kernels: tuple[Any, ...]

    def __call__(self, *given: Any) -> Any:
        """Launch them, as they are on a device that begins none early; the first argument is a tensor."""
        early = family(given[0].device) in FAMILIES
        return self.launch(*given, *(map(Early, self.kernels) if early else self.kernels))

    @property
    def __name__(self) -> str:
        """What a printed graph calls it."""
        return f"early_{self.launch.__name__}"
