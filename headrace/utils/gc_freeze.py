"""The collector of garbage, kept off what is none: what was there before a piece of work, and what imports make."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Python 3.12 begins with some hundred objects frozen. Who freezes for a reason of his own has thousands.
PYTHONS_OWN = 1000


@contextmanager
def sparing_the_old() -> Iterator[None]:
    """Leave the objects that exist already out of collections while the block runs.

    A trace or an export makes so many objects that all of them are collected several times, and each time the millions
    that the imported libraries hold would be walked in vain: a tenth of the whole time.
    """
    if gc.get_freeze_count() > PYTHONS_OWN:  # frozen by an outer block, or by a caller for longer than ours
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing while libraries are imported.

    What they make stays, torch's and transformers' millions of objects, and would be walked again and again: a sixth of
    the time that importing takes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
