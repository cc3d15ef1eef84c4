"""The command `headrace`."""

from headrace.runtime.cli.app import main

__all__ = ["main"]
