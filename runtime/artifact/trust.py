"""Whose program a saved model is: `save` notes the digest of what it wrote, and loading runs that unasked, alone.

A digest says what a folder holds and not who wrote it: anybody can compute one. So it counts only where it stands in
the user's own register, and only while nobody else can change the folder between the check and the use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from headrace.errors import ArtifactError, warn
from headrace.utils.inside import real
from headrace.utils.ownership import OTHERS, open_parents, open_to_others

# What asking for the register raises where it cannot be entered, or where the user has no home.
UNREACHABLE = (OSError, RuntimeError)


def register() -> Path:
    """The folder that holds an empty file for each saved model of this user's, named by its manifest's digest."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = named if named.is_absolute() else Path("~/.local/state").expanduser()
    return state / "headrace" / "saved"


def remember(folder: Path, digest: str) -> None:
    """Note that this user wrote what lies in a folder, and leave it writable by nobody else, whatever the umask is.

    Warns:
        HeadraceWarning: it cannot be noted, so that loading will ask.
    """
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)
    try:
        place = register()
        for missing in reversed([one for one in (place, *place.parents) if not one.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        (place / digest).touch(mode=0o600)
    except UNREACHABLE as error:
        warn(
            f"That this model is yours cannot be noted ({error}), so that loading it will take trust=True. Set "
            "XDG_STATE_HOME to a folder of your own to have it noted there."
        )


def check_trust(folder: Path, digest: str, trust: bool | None) -> None:
    """Refuse to run a program that nobody vouches for.

    Args:
        folder: by a path that stays its own while it is read.
        digest: its manifest's.

    Raises:
        ArtifactError: `trust` is False; or None, and this user's `save` did not write the folder, or others can change
            it.
    """
    if trust is not None and not isinstance(trust, bool):
        raise ArtifactError(f"trust is {trust!r}; True, False or None is accepted.")
    if trust:
        return
    if why := "trust is False" if trust is False else _doubt(folder, digest):
        raise ArtifactError(
            f"{folder} holds a program, which loading runs, and {why}. Pass trust=True if you know where it comes "
            f"from, or make it anew: headrace compile MODEL {folder}"
        )


def _doubt(folder: Path, digest: str) -> str:
    """Why a folder may hold what another wrote; empty where it cannot."""
    try:
        place = real(register())
        if not (place / digest).is_file():
            return f"it was not saved by this user here: nothing in {place} says so"
        noted, held = open_parents(place / digest, "the register of saved models"), open_parents(real(folder), "it")
        return next(chain(noted, held, _open_within(folder)), "")
    except UNREACHABLE as error:
        return f"whether this user saved it here cannot be looked up ({error})"


def _open_within(folder: Path) -> Iterator[str]:
    """What others can change, or may lie elsewhere."""
    if found := open_to_others(folder.stat(), "it"):
        yield found
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_symlink():  # even to within: on the way it may pass where others can turn it
            yield f"{name} is a link, of which `save` makes none"
        elif found := open_to_others(path.stat(), str(name)):
            yield found
