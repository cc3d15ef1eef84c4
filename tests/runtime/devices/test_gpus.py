"""Several GPUs of one host, where there are some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headrace
from tests.tiny import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs that torch.cuda sees"),
]
RANDOM = np.random.default_rng(0)
IDS = [RANDOM.integers(5, 90, count).tolist() for count in RANDOM.integers(1, 60, 200)]


@pytest.mark.parametrize("parallel", ["data", "tensor"])
@pytest.mark.parametrize("name", ["bert", "qwen3", "modernbert", "gemma3"])
def test_two_answer_as_one(name: str, parallel: str) -> None:
    options: dict[str, Any] = {"pooling": "mean", "dtype": "float32", "progress": False}
    one = headrace.compile(build(name), target="cuda:0", **options)
    two = headrace.compile(build(name), target="cuda:0-1", parallel=parallel, **options)
    for got, wanted in zip(two(IDS), one(IDS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=1e-5)
    two.close()
