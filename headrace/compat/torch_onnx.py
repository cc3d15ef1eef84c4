"""Private corners of torch.onnx: translating with the tables of operators at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import onnx_ir as ir
import onnxscript.function_libs.torch_lib.ops  # noqa: F401
from onnxscript.function_libs.torch_lib import registration
from torch.export import ExportedProgram
from torch.onnx._internal.exporter import _core, _registration
from torch.onnx._internal.exporter._torchlib import _torchlib_registry

# Operators that only onnxscript's own functions call.
INTERNAL = "internal::"


def translate(exported: ExportedProgram, opset: int, translations: Mapping[Any, Callable[..., Any]]) -> ir.Model:
    """What `torch.onnx.export(..., custom_translation_table=translations, optimize=False)` makes.

    That parses the source of each of its 470 functions before it translates the first operator, which takes as long as
    the translation of a small model.

    Raises:
        torch.onnx.OnnxExporterError: an operator has no translation.
    """
    registry = _registration.ONNXRegistry()
    registry._opset_version = opset
    for known in (*_torchlib_registry.get_torchlib_ops(), *_onnxscripts()):
        registry._register(known.fx_target, known)
    registry._cleanup_registry_based_on_opset_version()
    for target, function in translations.items():
        registry.register_op(target, function)
    made = _core.export(exported, registry=registry, opset_version=opset, verbose=False, optimize=False)
    model: ir.Model = made.model
    return model


def _onnxscripts() -> Iterator[_registration.OnnxDecompMeta]:
    """The translations that onnxscript has of operators that this torch has: its module `ops` registers them."""
    for name, functions in registration.default_registry.items():
        target: Any = None if name.startswith(INTERNAL) else _registration._get_overload(name)
        for function in functions.overloads if target is not None else ():
            with suppress(Exception):  # torch.onnx too leaves out one that it cannot read
                yield _registration.OnnxDecompMeta(function, target, None)
