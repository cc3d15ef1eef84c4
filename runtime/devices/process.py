"""The process of one device, as the process of the model holds it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

from headrace.runtime.devices.channel import Channel
from headrace.runtime.devices.origin import Origin

# Not multiprocessing's spawn, which runs the caller's script again to find what it was given.
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from headrace.runtime.devices.work import main
main(int(sys.argv[1]))
"""
# Seconds that a process has to end by itself before it is killed.
PATIENCE = 5.0


class Process:
    """A process that makes its model of `origin`, and a channel to it."""

    def __init__(self, origin: Origin, cores: int, files: Iterable[int] = ()) -> None:
        """Start it.

        Args:
            cores: how many the process may use.
            files: descriptors that it needs by their numbers.
        """
        self.target, self.closing = origin.target, False
        ours, theirs = socket.socketpair()
        # Tokenizers and torch each keep as many threads as there are cores; a process a device would have them fight.
        threads = {"OMP_NUM_THREADS": str(cores), "RAYON_NUM_THREADS": str(cores)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=(theirs.fileno(), *files), stdin=subprocess.DEVNULL, env=threads | os.environ,
            )  # fmt: skip
        self.channel = Channel(ours)
        self.channel.send(origin)

    @property
    def id(self) -> int:
        """Of the process."""
        return self._process.pid

    def why(self) -> str:
        """How it ended, in words."""
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return f"process {self.id} closed its connection"
        if status >= 0:
            return f"process {self.id} ended with status {status}"
        name = signal.Signals(-status).name
        killed = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"process {self.id} was ended by {name}{killed}"

    def hang_up(self) -> None:
        """Tell it to end."""
        self.closing = True
        self.channel.close()

    def wait(self) -> None:
        """Until it has ended, by force if it must."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Now, whatever it is at."""
        self.closing = True
        with suppress(OSError):
            self._process.kill()
