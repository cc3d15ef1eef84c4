"""A target is parsed once: kind, variant, devices."""

import pytest

from headrace.errors import TargetError
from headrace.target import Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("cpu", Target("cpu")),
        ("cuda:1", Target("cuda", devices=(1,))),
        ("cuda:0-3", Target("cuda", devices=(0, 1, 2, 3))),
        ("cuda:0,2", Target("cuda", devices=(0, 2))),
        ("cuda:0-1,5", Target("cuda", devices=(0, 1, 5))),
        ("cuda:sm90", Target("cuda", "sm90")),
        ("rocm:gfx942:1", Target("rocm", "gfx942", (1,))),
        ("onnx:cuda:1", Target("onnx", "cuda", (1,))),
    ],
)
def test_parse(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target
    assert parse_target(target) is target


@pytest.mark.parametrize("text", ["", ":", "cuda:", "cuda::1", "cuda:a:b", "cuda:a:b:1", ":1", "cuda:1:sm90"])
def test_what_has_not_the_form(text: str) -> None:
    with pytest.raises(TargetError, match=r"There is no target .* has not the form of one"):
        parse_target(text)


def test_devices_that_are_none() -> None:
    with pytest.raises(TargetError, match="names a device twice"):
        parse_target("cuda:1,1")
    with pytest.raises(TargetError, match="no range: 3-1"):
        parse_target("cuda:3-1")
    with pytest.raises(TargetError, match="no range: 0-99999999"):
        parse_target("cuda:0-99999999")


def test_one_device() -> None:
    assert parse_target("cuda").device is None
    assert parse_target("cuda:1").device == 1
    with pytest.raises(TargetError, match=r"names 4 devices, and a model runs on one.*cuda:0, cuda:1"):
        _ = parse_target("cuda:0-3").device
