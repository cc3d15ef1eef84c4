"""The command `headrace`."""

import sys
from typing import Any

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    The code is 0; 1 where something does not pass, or nobody reads on; 2 after one line on a user's mistake; 128 and
    its number after a signal.

    Args:
        arguments: None takes those of the process, which then ends with the command.
    """
    # It listens before the commands are imported, which takes most of the time that --help does.
    from headrace.runtime.tools.cli import signals

    code = signals.run(lambda: _run(arguments))
    if arguments is None:
        signals.end_at_once()
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    from headrace.runtime.tools.cli import console, streams

    def command() -> Any:
        from headrace.runtime.tools.cli.app import run

        return run(arguments)

    streams.open_missing()
    return console.run(command)
