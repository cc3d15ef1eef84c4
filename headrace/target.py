"""Where a program runs, as a value: parsed once, and asked by everything that wants to know a part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import TargetError

AUTO = "auto"
DEVICES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
# The most devices that one host is taken to have: a range beyond is a slip of the pen.
MOST = 1024


@dataclass(frozen=True)
class Target:
    """A kind of target, and where it was said which: its devices, or a variant of it.

    `cuda` is its first device, `cuda:1` its second, `cuda:0-3` and `cuda:0,2` several; `rocm:gfx942` an architecture,
    which need not be here to compile for; `onnx:tensorrt` a provider, and `onnx:cuda:1` one on a device.

    Attributes:
        kind: the name of its backend.
        variant: an architecture or a provider, as the backend knows it.
        devices: by number, in the order that was said; empty where nothing was.
    """

    kind: str
    variant: str | None = None
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what names nothing.

        Raises:
            TargetError: no kind, or a device twice.
        """
        if not self.kind or self.variant == "":
            raise TargetError(f"There is no target {str(self)!r}. Write kind, kind:variant or kind:devices.")
        if len(set(self.devices)) != len(self.devices):
            raise TargetError(f"The target {self} names a device twice.")

    @property
    def device(self) -> int | None:
        """The one device that was named, None where none was.

        Raises:
            TargetError: several were.
        """
        if len(self.devices) > 1:
            raise TargetError(
                f"The target {self} names {len(self.devices)} devices, and a model runs on one. Compile it once for "
                f"each, {self.kind}:{self.devices[0]}, {self.kind}:{self.devices[1]} ..., and share the requests out."
            )
        return self.devices[0] if self.devices else None

    def __str__(self) -> str:
        """As it is written: `cuda:1`."""
        numbers = ",".join(map(str, self.devices))
        return ":".join(part for part in (self.kind, self.variant, numbers) if part)


def parse_target(text: str | Target) -> Target:
    """A target as a caller writes it.

    Raises:
        TargetError: it has not the form of one.
    """
    if isinstance(text, Target):
        return text
    kind, *rest = str(text).split(":")
    devices = _devices(rest.pop(), str(text)) if rest and DEVICES.fullmatch(rest[-1]) else ()
    if len(rest) > 1 or "" in (kind, *rest):
        raise TargetError(
            f"There is no target {str(text)!r}. It has not the form of one: kind, kind:variant or kind:devices, as in "
            "cpu, onnx:cuda, cuda:1, cuda:0-3."
        )
    return Target(kind, rest[0] if rest else None, devices)


def _devices(text: str, whole: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) - int(first) not in range(MOST):
            raise TargetError(f"The devices of {whole!r} are no range: {part}. The first stands before the last.")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
