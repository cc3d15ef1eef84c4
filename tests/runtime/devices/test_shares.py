"""Requests are dealt out by tokens."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.devices.shares import dealt, quotas


@pytest.mark.parametrize(
    ("total", "loads", "wanted"),
    [
        (90, [0, 0, 0], [30, 30, 30]),
        (90, [30, 0, 0], [10, 40, 40]),
        (20, [100, 0, 10], [0, 15, 5]),
        (5, [100, 0, 10], [0, 5, 0]),
    ],
    ids=["level", "one ahead", "one far ahead", "the idle one"],
)
def test_quotas_level_what_the_devices_have(total: int, loads: list[int], wanted: list[int]) -> None:
    np.testing.assert_allclose(quotas(total, np.array(loads)), wanted)


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_each_device_gets_as_many_tokens_of_every_length(devices: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 512, 4096)
    shares = dealt(lengths, np.zeros(devices, np.int64))
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    tokens = [int(lengths[own].sum()) for own in shares]
    assert max(tokens) - min(tokens) <= 512
    longest = [lengths[own].max() for own in shares]
    assert min(longest) > 500, "the longest are not all with one"


def test_a_request_alone_goes_where_there_is_least() -> None:
    alone = np.array([7])
    assert [len(own) for own in dealt(alone, np.array([0, 90]))] == [1, 0]
    assert [len(own) for own in dealt(alone, np.array([90, 0]))] == [0, 1]
