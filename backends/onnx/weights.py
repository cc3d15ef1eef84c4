"""The forms that weights are kept in: float32, float16, or int8 with a gate on what that costs."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = {"float32": "", "float16": "_fp16", "int8": "_int8"}


def convert(path: Path, dtype: str) -> None:
    """Rewrite a float32 model file in another form."""
    if dtype == "float16":
        _to_float16(path)
    elif dtype == "int8":
        _to_int8(path)


def _to_float16(path: Path) -> None:
    """Weights and products in half precision; inputs and outputs as they were."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(path), keep_io_types=True, disable_shape_infer=False)
    onnx.save(model, path)


def _to_int8(path: Path) -> None:
    """The weights of products in 8 bits a channel; a scale for each tensor of activations is found as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # By default Attention would be quantised too, which breaks it.
    quantize_dynamic(path, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
