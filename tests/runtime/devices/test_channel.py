"""Messages between two processes, here two ends in one."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from headrace.runtime.devices import memory
from headrace.runtime.devices.channel import Channel


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def test_small_and_large_come_as_they_were_sent() -> None:
    one, other = pair()
    sent = {"small": np.arange(3), "large": np.arange(100_000.0), "text": "x" * 100_000, "none": None}
    one.send(sent)
    message = other.receive()
    assert message.value["text"] == sent["text"]
    assert message.value["none"] is None
    for name in ("small", "large"):
        np.testing.assert_array_equal(message.value[name], sent[name])


def test_a_block_is_written_again_once_it_was_read() -> None:
    one, other = pair()
    files = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        one.send(np.full(100_000, number))
        message = other.receive()
        assert message.value[0] == message.value[-1] == number
        message.release()
        other.send("ready")
        assert one.receive().value == "ready"  # and with it that the block is free
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2


def test_what_is_not_released_is_not_written_over() -> None:
    one, other = pair()
    one.send(np.full(100_000, 1))
    first = other.receive()
    one.send(np.full(100_000, 2))
    second = other.receive(copied=True)
    assert first.value[0] == 1
    assert second.value[0] == 2
    second.value[:] = 3  # the receiver's own


def test_a_writer_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 1 << 20)
    one, other = pair()
    one.send(np.zeros(100_000))
    writer = Thread(target=one.send, args=(np.ones(100_000),))
    Thread(target=_listen, args=(one,), daemon=True).start()  # takes what is given back
    writer.start()
    writer.join(0.1)
    assert writer.is_alive()
    other.receive().release()
    writer.join(5)
    assert not writer.is_alive()
    assert other.receive().value[0] == 1


def _listen(channel: Channel) -> None:
    with suppress(EOFError):
        channel.receive()


def test_an_end_that_is_gone_is_told() -> None:
    one, other = pair()
    other.close()
    with pytest.raises(EOFError):
        one.receive()
    with pytest.raises(BrokenPipeError):
        one.send("anybody")
