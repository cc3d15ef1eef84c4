"""What a program does that no program may: each is an error that says where."""

from __future__ import annotations


class Fault(Exception):
    """Something that would be wrong, or undefined, on the device."""


class MemoryFault(Fault):
    """An access to what nobody allocated."""


class WaitFault(Fault):
    """A register is used while an access that was not waited for may still change it."""


class RaceFault(Fault):
    """Two waves use a place of local memory, one of them writing, with no barrier between."""
