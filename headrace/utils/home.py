"""Paths that begin with somebody's home."""

from pathlib import Path

from headrace.errors import HeadraceError


def expanded(path: str | Path, refusal: type[HeadraceError]) -> Path:
    """The path, with `~` as the home that it stands for.

    Raises:
        refusal: there is no such user, or they have no home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise refusal(f"{path} begins with a home that is not known: {error} Write the path out.") from error
