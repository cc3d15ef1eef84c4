"""Attention over paged caches on a host answers as its definition does, whatever lies in what is nobody's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.backends.inductor.paged import ATTENTION_PAGED_HOST
from headrace.ops.cached import ATTENTION_PAGED

SIZE, HEADS, GROUPS, WIDTH = 4, 4, 2, 8
CASES = {
    "decoding": ((1, 1, 1), (0, 9, 30)),
    "prefill": ((5, 17, 2), (0, 0, 0)),
    "mixed": ((1, 6, 1, 0, 3), (13, 5, 0, 7, 21)),
}
KINDS = {
    "causal": ("causal", [-1, 0]),
    "window": ("causal", [5, 0]),
    "chunked": ("chunked", [5, 0]),
}


def drawn(counts: tuple[int, ...], context: tuple[int, ...], kind: str, dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(len(counts))
    q, k, v = (
        torch.randn(sum(counts), heads, WIDTH, generator=generator).to(dtype) for heads in (HEADS, GROUPS, GROUPS)
    )
    most = max(-(-(count + held) // SIZE) for count, held in zip(counts, context, strict=True))
    caches = [torch.randn(len(counts) * most, SIZE, GROUPS, WIDTH, generator=generator).to(dtype) for _ in range(2)]
    blocks = torch.randperm(len(counts) * most, generator=generator).reshape(len(counts), most).int()
    slots = []
    for order, (count, held) in enumerate(zip(counts, context, strict=True)):
        slots += [int(blocks[order, place // SIZE]) * SIZE + place % SIZE for place in range(held, held + count)]
        for cache in caches:  # past what a sequence has lies what is no number
            whole = cache[blocks[order].long()].flatten(0, 1)
            whole[held:] = torch.nan
            cache[blocks[order].long()] = whole.unflatten(0, (most, SIZE))
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    told = (torch.tensor(slots), blocks, offsets, torch.tensor(context).int())
    return [q, k, v, *caches, *told, None, None, 0.3, *KINDS[kind], 0.0, "none"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_answers_as_the_definition(case: str, kind: str, dtype: torch.dtype) -> None:
    given = drawn(*CASES[case], kind, dtype)
    again = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
    wanted, got = ATTENTION_PAGED(*given), ATTENTION_PAGED_HOST(*again)
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)
    for one, other in zip(given[3:5], again[3:5], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("changed", ["sinks", "bias", "softcap", "shared"])
def test_what_sdpa_has_not_is_done_by_the_definition(changed: str) -> None:
    given = drawn(*CASES["mixed"], "causal", torch.float32)
    if changed == "shared":  # an earlier layer wrote them
        ATTENTION_PAGED(*given)
        given[1] = given[2] = None
    elif changed == "softcap":
        given[14] = 3.0
    else:
        given[{"sinks": 9, "bias": 10}[changed]] = torch.rand(HEADS)
        given[15] = "alibi" if changed == "bias" else "none"
    again = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
    torch.testing.assert_close(ATTENTION_PAGED_HOST(*again), ATTENTION_PAGED(*given), rtol=1e-5, atol=1e-5)
