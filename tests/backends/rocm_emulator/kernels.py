# mypy: disable-error-code="import-not-found, import-untyped"
"""Our kernels in the emulator: each stands for itself where it is launched, compiled for gfx942 and executed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.gpu.architecture import ARCHITECTURES
from headrace.backends.kernels.compile import cross_compile
from headrace.backends.kernels.compile.launches import Launch
from tests.backends.rocm_emulator import launch as emulator
from tests.backends.rocm_emulator.machine.run import Retired

GFX942 = ARCHITECTURES["gfx942"]
Change = Callable[[bytes, str], bytes]


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

    def __init__(self, function: Any, journal: Journal | None = None, change: Change | None = None) -> None:
        """Stand for what Triton's `jit` made.

        Args:
            change: of the machine code before it is executed: a seeded defect.
        """
        self.function, self.journal, self.change = function, journal or Journal(), change

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """The launch over a grid."""

        def run(*arguments: Any, **constants: Any) -> None:
            launch = Launch(self.function, arguments, constants, ())
            source = cross_compile.source(launch)
            kinds = [source.signature[name] for name in self.function.arg_names[: len(arguments)]]
            given = [one for pair in zip(kinds, arguments, strict=True) for one in _passed(*pair)]
            self.journal.note(launch.name, emulator.launch(executable(launch, self.change), grid, given))

        return run


def _passed(kind: str, value: Any) -> list[tuple[str, Any]]:
    """What Triton's launcher passes of one argument: nothing of a constant, of a descriptor all that it describes."""
    if kind == "constexpr":
        return []
    if not kind.startswith("tensordesc"):
        return [(kind, value)]
    sizes, strides = [("i32", size) for size in value.shape], [("i64", stride) for stride in value.strides]
    described = [("*", value.base), *[("i64", size) for size in value.shape], *strides]
    return [
        *described,
        ("i1", value.padding == "nan"),
        ("i1", getattr(value, "round_f32_to_tf32", False)),
        *sizes,
        *strides,
    ]


def executable(launch: Launch, change: Change | None = None) -> emulator.Kernel:
    """What the emulator executes of a launch."""
    made = cross_compile.compiled(launch, GFX942)
    binary = bytes(made.asm["hsaco"])
    return decoded(
        change(binary, launch.name) if change else binary, launch.name, made.metadata.shared, made.metadata.num_warps
    )


decoded = functools.lru_cache(64)(emulator.kernel)
