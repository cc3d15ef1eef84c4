"""Names that came with a folder, and whether what they lead to came with it too."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

# Where the hub's client keeps the files of a snapshot, which are links to there: `blobs` beside `snapshots/REVISION`.
SNAPSHOTS, BLOBS = "snapshots", "blobs"


def inside(folder: Path, name: object) -> bool:
    """Whether a name is relative and leads into the folder, once every link on the way is followed.

    The blobs of a hub snapshot count as inside: the client put them there, with the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        return False
    home, place = real(folder), real(folder / name)
    return place.is_relative_to(home) or place.parent == _blobs(home)


def real(path: Path) -> Path:
    """The one path of a place, without links; of what is not there, as far as it is."""
    return Path(os.path.realpath(path))


def _blobs(home: Path) -> Path | None:
    return next((parent.parent / BLOBS for parent in home.parents if parent.name == SNAPSHOTS), None)
