"""What model files name beside themselves is found, wherever in the file it stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.errors import ArtifactError

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

from onnx import TensorProto, helper  # noqa: E402

from headrace.backends.onnx.check.contents import ENTRY, MESSAGES, require_contained  # noqa: E402
from headrace.backends.onnx.session import HOST, Session  # noqa: E402


def test_every_way_to_a_tensor_is_in_the_table() -> None:
    """As the installed onnx has its messages."""
    seen: dict[str, Any] = {}

    def reach(message: Any) -> None:
        if message.name not in seen:
            seen[message.name] = {f.number: f.message_type for f in message.fields if f.message_type}
            for inner in seen[message.name].values():
                reach(inner)

    reach(onnx.ModelProto.DESCRIPTOR)
    leads = {"NodeProto", "TensorProto"}
    while more := {m for m, fields in seen.items() if leads & {f.name for f in fields.values()}} - leads:
        leads |= more
    for message in leads:
        wanted = {n: f.name for n, f in seen[message].items() if f.name in leads or (n == 13 and f.name == ENTRY)}
        assert MESSAGES.get(message, {}) == wanted, message


def tensor(location: str) -> Any:
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("length", "8"), ("location", location), ("offset", "0")):
        made.external_data.add(key=key, value=value)
    return made


def graph(nodes: list[Any], initializers: list[Any], sparse: list[Any]) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    return helper.make_graph(nodes, "g", [x], [y], initializers, sparse_initializer=sparse)


def model(nodes: Any = (), initializers: Any = (), sparse: Any = (), **fields: Any) -> Any:
    plain = [helper.make_node("Identity", ["x"], ["y"])]
    return helper.make_model(graph([*nodes, *plain], list(initializers), list(sparse)), **fields)


def constant(location: str) -> Any:
    return helper.make_node("Constant", [], ["c"], value=tensor(location))


def sparse(location: str) -> Any:
    made = onnx.SparseTensorProto(dims=[2])
    made.values.CopyFrom(tensor(location))
    return made


def training(location: str) -> Any:
    made = model()
    made.training_info.add().initialization.CopyFrom(graph([], [tensor(location)], []))
    return made


def function(location: str) -> Any:
    opset = [helper.make_opsetid("", 18)]
    return model(functions=[helper.make_function("own", "F", [], ["c"], [constant(location)], opset)])


def branch(location: str) -> Any:
    return helper.make_node("If", ["x"], ["z"], then_branch=graph([constant(location)], [], []))


PLACES: dict[str, Callable[[str], Any]] = {
    "an initializer": lambda name: model(initializers=[tensor(name)]),
    "a sparse one": lambda name: model(sparse=[sparse(name)]),
    "a constant": lambda name: model(nodes=[constant(name)]),
    "a branch": lambda name: model(nodes=[branch(name)]),
    "a function": function,
    "training": training,
}


@pytest.mark.parametrize("place", PLACES)
def test_data_elsewhere_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    path = tmp_path / "model" / "model.onnx"
    for name in ("../secret", str(tmp_path / "secret"), "link", "/dev/zero", ""):
        path.write_bytes(PLACES[place](name).SerializeToString())
        with pytest.raises(ArtifactError, match=r"reads tensors from .*, which leads out of its folder"):
            Session(path, (HOST,))
    path.write_bytes(PLACES[place]("model.onnx_data").SerializeToString())
    require_contained(path)


def test_a_devices_code_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["z"], domain="com.microsoft", embed_mode=0, ep_cache_context="engine")
    (path := tmp_path / "model.onnx").write_bytes(model(nodes=[node]).SerializeToString())
    with pytest.raises(ArtifactError, match=r"holds a node of EPContext: machine code for one device"):
        Session(path, (HOST,))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x0b", b"\x3a\xff\xff\xff\xff\x0f", b"\xff" * 11, b"\x3a", b"\xba\x80\x80\x80\x10\x00"],
    ids=["nothing", "a group", "too long", "an endless number", "cut off", "a number of 33 bits"],
)
def test_what_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"cannot read .*model\.onnx"):
        Session(path, (HOST,))


def test_damage_is_refused_or_read(tmp_path: Path) -> None:
    """Whatever the bytes are, there is an answer, and no other error."""
    whole, random = PLACES["a branch"]("model.onnx_data").SerializeToString(), Random(0)
    path = tmp_path / "model.onnx"
    for _ in range(300):
        data = bytearray(whole)
        data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(bytes(data[: random.randrange(len(data))] if random.random() < 0.3 else data))
        with contextlib.suppress(ArtifactError, ValueError, IndexError):
            require_contained(path)
