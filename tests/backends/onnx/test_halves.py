"""Exports of a part of what was traced, and what torch's exporter and onnxruntime's tools make of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnxruntime
import torch

import headrace
from headrace import graphs
from headrace.backends.onnx.export import graph as written
from headrace.backends.onnx.profiles import find_profile
from headrace.errors import TargetError
from headrace.ir import Task
from headrace.lowering.forms.select import SelectTask
from tests.tiny import build, token_ids


def test_an_encoder_without_its_decoder_is_exported(tmp_path: Path) -> None:
    """What the trace learnt of the decoder's inputs went with them, and stays away in each copy."""
    model = build("t5")
    lowered = headrace.lower(model, target="reference", pooling="mean")
    selected = SelectTask(Task.EMBED)(lowered.program).graph
    copied = graphs.sparing(graphs.rewrite(selected, lambda graph: None))
    assert not [guard for guard in copied._guards_code if "decoder" in guard]
    loaded = headrace.load(lowered.export_onnx(tmp_path / "t5"))
    ids = token_ids(9)
    with torch.no_grad():
        expected = model.encoder(ids).last_hidden_state.mean(1)[0]
    assert np.abs(loaded(ids.tolist())[0] - expected.numpy()).max() <= 1e-5


def test_a_failure_of_torchs_exporter_names_the_node(analysed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = SelectTask(Task.EMBED)(analysed("bert"))
    node = next(node for node in program.graph.graph.nodes if node.op == "call_function")

    def fails(*_: Any) -> None:
        said = f"Failed.\n<class 'NameError'>: name 'L' is not defined\n\nWhile executing %{node.name} : [num_users=0]"
        raise torch.onnx.errors.OnnxExporterError(said)

    monkeypatch.setattr(written, "translate", fails)
    with pytest.raises(TargetError) as refused:
        written.build(program, find_profile("std"))
    assert f"torch's exporter fails at {node.name} ({node.target}): name 'L' is not defined" in str(refused.value)


def test_onnxruntimes_own_quantisation_of_the_products_loads(tmp_path: Path) -> None:
    """By the line in docs/onnx.md: its default takes ONNX's Attention for another operator."""
    from onnxruntime.quantization import quantize_dynamic

    lowered = headrace.lower(build("bert"), target="reference", pooling="mean")
    folder, small = lowered.export_onnx(tmp_path / "bert"), tmp_path / "int8.onnx"
    quantize_dynamic(str(folder / "onnx/model.onnx"), str(small), op_types_to_quantize=["MatMul"], per_channel=True)
    session = onnxruntime.InferenceSession(str(small), providers=["CPUExecutionProvider"])
    feed = {given.name: np.ones((2, 5), np.int64) for given in session.get_inputs()}
    assert session.run(None, feed)[0].shape == (2, 32)
