"""The command `headrace`."""

from headrace.runtime.tools.cli.app import main

__all__ = ["main"]
