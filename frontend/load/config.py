"""Files of a model's folder that may be damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import LoadError


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Turn whatever fails in the block into a refusal that names what was read.

    Raises:
        LoadError: something failed.
    """
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise LoadError(
            f"{path} cannot be read: {error.__class__.__name__}: {said[:400]}{' ...' * (len(said) > 400)}"
        ) from error
