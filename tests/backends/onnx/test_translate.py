"""Translating and tidying a graph makes what torch.onnx and onnxscript make, on either torch, only sooner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer
from onnxscript.rewriter import onnx_fusions

from headrace import graphs
from headrace.backends.onnx.export import simplify
from headrace.backends.onnx.export.translate import table
from headrace.backends.onnx.profiles import PROFILES
from headrace.compat import torch_onnx
from headrace.ir import Task
from headrace.lowering.pipeline import prepare

# A mask and learned positions; rotations and norms, which become one node each; a bias made of positions.
CASES = (("bert", "portable"), ("mistral", "std"), ("t5", "fast"))


@pytest.fixture(params=CASES, ids=[f"{name}-{profile}" for name, profile in CASES])
def made(request: Any, analysed: Any) -> Any:
    """A program, and the arguments that say in which profile it is translated."""
    name, profile = request.param
    program = prepare(analysed(name, "T5EncoderModel") if name == "t5" else analysed(name), Task.EMBED)
    return program, (PROFILES[profile].written, table(PROFILES[profile]))


def nodes(model: ir.Model) -> Iterator[tuple[Any, ...]]:
    """Each node by its operator, what it reads and its attributes."""
    for node in model.graph:
        attributes = sorted((name, str(one.value)) for name, one in node.attributes.items())
        yield node.op_identifier(), [value and value.name for value in node.inputs], attributes


def test_translations_are_those_of_torch(made: Any) -> None:
    program, (opset, translations) = made
    mine = torch_onnx.translate(graphs.sparing(program.graph), opset, translations)
    theirs: Any = torch.onnx.export(
        graphs.sparing(program.graph), (), dynamo=True, opset_version=opset, verbose=False, optimize=False,
        custom_translation_table=translations,
    )  # fmt: skip
    assert list(nodes(mine)) == list(nodes(theirs.model))
    assert mine.opset_imports == theirs.model.opset_imports
    assert list(mine.graph.initializers) == list(theirs.model.graph.initializers)


def test_a_graph_is_as_tidy_as_by_all_rules(made: Any) -> None:
    program, how = made
    mine, theirs = (torch_onnx.translate(graphs.sparing(program.graph), *how) for _ in range(2))
    before = len(mine.graph)
    simplify.simplify(mine)
    optimizer.optimize_ir(theirs)
    onnx_fusions.fuse(theirs)
    for model in (mine, theirs):
        common.RemoveUnusedNodesPass()(model)
    assert list(nodes(mine)) == list(nodes(theirs))
    assert len(mine.graph) < before


def test_a_fused_node_stands_for_each_rotation(analysed: Any) -> None:
    program = prepare(analysed("mistral"), Task.EMBED)
    model = torch_onnx.translate(graphs.sparing(program.graph), PROFILES["std"].written, table(PROFILES["std"]))
    simplify.simplify(model)
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("RotaryEmbedding") == 2 * kinds.count("Attention") > 0
    assert "RMSNormalization" in kinds
