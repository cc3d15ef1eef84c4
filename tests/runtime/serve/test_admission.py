"""What is let in, what is not, and when that is told."""

from __future__ import annotations

import pytest

from headrace.runtime.serve import admission
from headrace.runtime.serve.admission import AT_ONCE, PATIENCE, REFUSALS, Admission, Bodies, Spacing
from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.refusals import Overloaded, Refusal


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(admission, "time", made)
    return made


def paced(clock: Clock, limits: Limits, seconds: float) -> Admission:
    """One that answers a text in so many seconds, long since."""
    made = Admission(limits)
    with made.entered(1):
        made.answered(1)  # the first, for which a model is compiled
        for _ in range(200):
            clock.now += seconds
            made.answered(1)
    return made


def test_a_full_queue_is_told_when_it_will_have_room(clock: Clock) -> None:
    made = paced(clock, Limits(queue=2), 0.25)
    with made.entered(3), made.entered(2):
        with pytest.raises(Overloaded) as refused:
            made.require_room()
        assert refused.value.words == "The server is overloaded: 2 requests wait or run. Try again in 2 s."
        assert refused.value.headers == {"retry-after": "2", "retry-after-ms": "1250"}
    made.require_room()


def test_who_would_wait_too_long_is_not_let_in(clock: Clock) -> None:
    made = paced(clock, Limits(wait=1.0), 0.25)
    with made.entered(4):
        made.require_room()
        with made.entered(1), pytest.raises(Overloaded):
            made.require_room()
    slow = paced(clock, Limits(timeout=0.1), 5.0)
    slow.require_room()  # nothing waits, so that it need not either
    with slow.entered(1), pytest.raises(Overloaded):
        slow.require_room()


def test_time_in_which_nothing_waits_is_not_counted(clock: Clock) -> None:
    made = paced(clock, Limits(wait=1.0), 0.01)
    clock.now += 3600
    with made.entered(1):
        clock.now += 0.01
        made.answered(1)
        assert made.expected < 0.02


def test_refusals_are_spaced_out(clock: Clock) -> None:
    made = Spacing()
    seconds = [made.seconds() for _ in range(AT_ONCE + 10)]
    assert max(seconds[:AT_ONCE]) < 1.5 / REFUSALS
    assert seconds[-1] == pytest.approx(10 / REFUSALS)
    assert all(made.seconds() <= PATIENCE for _ in range(10 * REFUSALS))
    clock.now += 3600
    assert made.seconds() == 0


def test_bodies_that_are_read_at_once() -> None:
    made = Bodies(10)
    with made.held(30):  # alone
        pass
    with made.held(6), made.held(4):
        with pytest.raises(Refusal) as refused, made.held(1):
            pass
        assert "10 bytes of other requests" in refused.value.words
        assert refused.value.status == 429
    with made.held(10):
        pass
