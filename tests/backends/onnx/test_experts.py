"""The grouped product of routed experts as a loop over those that some row chose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from headrace.backends.onnx.export.translate import Translation, as_function
from headrace.backends.onnx.profiles import PROFILES
from headrace.compat.torch_onnx import translate

EXPERTS, INNER, OUTER = 5, 6, 4
# Where each expert's rows end, of how many: each has some; the first, the last and one between have none, and none
# after; one has all; rows past the last expert's.
ENDS = (((1, 3, 4, 8, 9), 9), ((0, 2, 2, 7, 7), 7), ((0, 0, 1, 1, 1), 1), ((0, 1, 1, 2, 2), 4), ((0, 0, 0, 0, 0), 3))


class Experts(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        return torch.ops.transformers.grouped_mm_fallback(rows, self.weight.transpose(-2, -1), ends)


@pytest.mark.parametrize("profile", ["std", "portable"])
def test_each_row_is_multiplied_by_its_experts_weight(profile: str) -> None:
    pytest.importorskip("transformers.integrations.moe")
    weight = torch.randn(EXPERTS, OUTER, INNER, generator=torch.manual_seed(0))
    rows, ends = torch.randn(9, INNER), torch.tensor(ENDS[0][0], dtype=torch.int32)
    exported = torch.export.export(Experts(weight), (rows, ends), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, None))
    chosen = PROFILES[profile]
    product = torch.ops.transformers.grouped_mm_fallback.default
    model = translate(exported, chosen.written, {product: as_function(Translation(chosen).grouped)})
    file = ir.serde.serialize_model(model)
    sides: list[Any] = [ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])]
    sides.append(ReferenceEvaluator(file))
    for places, count in ENDS:
        given = np.random.default_rng(count).standard_normal((count, INNER)).astype(np.float32)
        own = np.searchsorted(places, np.arange(count), side="right")
        wanted = [
            weight[e].numpy() @ row if e < EXPERTS else np.zeros(OUTER) for e, row in zip(own, given, strict=True)
        ]
        for side in sides:
            (found,) = side.run(None, {"rows": given, "ends": np.array(places, np.int32)})
            np.testing.assert_allclose(found, wanted, atol=1e-5)
