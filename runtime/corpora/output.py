"""The folder that vectors are written to: a file a part, each whole or not there, and what all of them are of."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.errors import HeadraceError, InputError
from headrace.runtime.corpora.sources import Part, Source
from headrace.utils.file_lock import lock

FACTS = "_corpus.json"  # what begins so, readers of a folder of Parquet pass over
BEGUN = ".begun"  # what a process that was killed leaves is deleted by the next


class Output:
    """One folder, held by one process at a time."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Make it, or go on with it.

        Args:
            facts: what every vector in it is of.

        Raises:
            InputError: it holds vectors of another model or of other options, or another process writes to it.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}. Choose another folder.") from error
        if not lock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB, otherwise=True):
            os.close(self._held)
            raise InputError(f"{folder} is being written by another process. Wait for it, or choose another folder.")
        try:
            for left in folder.glob(f"*{BEGUN}"):
                left.unlink()
            self._agree(json.loads(json.dumps(facts)))
        except BaseException:
            self.close()
            raise
        self.done = {path.name for path in folder.glob("*.parquet")}

    def close(self) -> None:
        """Let go of it."""
        os.close(self._held)

    def name(self, source: Source, place: tuple[int, int]) -> str:
        """Of the file of a part."""
        return f"{source.key}-{place[0]:06}-{place[1]:06}.parquet"

    def require_unchanged(self, source: Source) -> None:
        """Refuse a file whose rows would stand here twice.

        Raises:
            InputError: it is not what it was when its vectors were written.
        """
        if any(name.startswith(source.place) and not name.startswith(source.key) for name in self.done):
            raise InputError(
                f"{source.path} has changed since its vectors were written. To embed it anew, delete "
                f"{self.folder}/{source.place}-*.parquet first."
            )

    def write(self, source: Source, part: Part, vectors: NDArray[np.float32], errors: list[str | None]) -> None:
        """Write a part: its vectors [n, d], and why a row has none.

        Raises:
            HeadraceError: the disk does not take it.
        """
        failed = np.array([error is not None for error in errors])
        values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        table = pa.table(
            {
                "file": pa.array([str(source.path)] * len(errors), pa.string()),
                "row": pa.array(np.arange(part.first, part.first + len(errors), dtype=np.int64)),
                "embedding": pa.FixedSizeListArray.from_arrays(values, vectors.shape[1], mask=pa.array(failed)),
                "error": pa.array(errors, pa.string()),
            }
        )
        name = self.name(source, part.place)
        self._place(name, lambda path: pq.write_table(table, path))
        self.done.add(name)

    def _agree(self, facts: dict[str, Any]) -> None:
        path = self.folder / FACTS
        if not path.exists():
            if any(self.folder.iterdir()):
                raise InputError(f"{self.folder} holds other files and no {FACTS}. Choose an empty or a new folder.")
            self._place(FACTS, lambda begun: begun.write_text(json.dumps(facts, indent=1)))
            return
        try:
            held = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}). Choose another folder.") from error
        if other := [name for name in facts if held.get(name) != facts[name]]:
            told = "; ".join(f"{name} was {held.get(name)!r:.100} and is {facts[name]!r:.100}" for name in other)
            raise InputError(
                f"{self.folder} holds vectors that were made otherwise: {told}. Choose another folder, or go on "
                "as before."
            )

    def _place(self, name: str, write: Any) -> None:
        """Write a file such that it is there whole or not at all, whenever the process or the machine ends."""
        begun = self.folder / f".{name}{BEGUN}"  # hidden, and no .parquet: nobody reads it
        try:
            write(begun)
            with begun.open("rb") as file:
                os.fsync(file.fileno())
            begun.replace(self.folder / name)
            os.fsync(self._held)
        except OSError as error:
            with suppress(OSError):
                begun.unlink()
            raise HeadraceError(
                f"{self.folder} cannot be written: {error}. What is written stays: make room, and run the same again "
                "to go on."
            ) from error
