# mypy: disable-error-code="import-not-found, import-untyped"
"""Our kernels in the emulator: each stands for itself where it is launched, compiled for gfx942 and executed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headrace.backends.gpu.architecture import ARCHITECTURES
from headrace.backends.kernels.compile import cross_compile
from headrace.backends.kernels.compile.launches import Launch
from tests.backends.rocm_emulator import launch as emulator
from tests.backends.rocm_emulator.machine.run import Retired

GFX942 = ARCHITECTURES["gfx942"]


@dataclass
class Journal:
    """What was launched.

    Attributes:
        launches: how often, by kernel.
        retired: instructions, by kernel, each counted once for every wave.
    """

    launches: dict[str, int] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, retired: Retired) -> None:
        """One launch."""
        self.launches[name] = self.launches.get(name, 0) + 1
        self.retired[name] = self.retired.get(name, 0) + retired.waves


class Emulated:
    """Stands for a kernel of Triton's: what it is launched with decides what is compiled, as on a device."""

    def __init__(self, function: Any, journal: Journal | None = None) -> None:
        """Stand for what Triton's `jit` made."""
        self.function, self.journal = function, journal or Journal()

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """The launch over a grid."""

        def run(*arguments: Any, **constants: Any) -> None:
            launch = Launch(self.function, arguments, constants, ())
            source = cross_compile.source(launch)
            kinds = [source.signature[name] for name in self.function.arg_names[: len(arguments)]]
            given = [(kind, value) for kind, value in zip(kinds, arguments, strict=True) if kind != "constexpr"]
            self.journal.note(launch.name, emulator.launch(executable(launch), grid, given))

        return run


def executable(launch: Launch) -> emulator.Kernel:
    """What the emulator executes of a launch."""
    made = cross_compile.compiled(launch, GFX942)
    return decoded(made.asm["hsaco"], launch.name, made.metadata.shared, made.metadata.num_warps)


decoded = functools.lru_cache(64)(emulator.kernel)
