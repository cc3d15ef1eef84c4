"""What exists before a long piece of work is left out of collections while it lasts, and given back afterwards."""

import gc
import weakref

import pytest

from headrace.utils.gc_freeze import PYTHONS_OWN, sparing_the_old


class Knot:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def test_the_old_is_spared_and_given_back() -> None:
    old = weakref.ref(Knot())
    with sparing_the_old():
        assert gc.get_freeze_count() > PYTHONS_OWN
        new = weakref.ref(Knot())
        gc.collect()
        assert old() is not None
        assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_blocks_within_blocks_and_errors() -> None:
    with sparing_the_old():
        with pytest.raises(KeyError), sparing_the_old():
            raise KeyError
        assert gc.get_freeze_count() > PYTHONS_OWN  # the inner block ends, the outer goes on
    with pytest.raises(KeyError), sparing_the_old():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_a_caller_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        with sparing_the_old():
            pass
        assert gc.get_freeze_count() > PYTHONS_OWN
    finally:
        gc.unfreeze()
