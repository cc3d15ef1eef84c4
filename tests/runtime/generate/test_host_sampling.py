"""Tokens that numpy chooses are those that torch chooses, whatever is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.runtime.generate.batch import batched
from headrace.runtime.generate.host_sampling import adjust, choose, uniform
from headrace.runtime.generate.options import GenerateOptions
from headrace.runtime.generate.row import Row
from headrace.runtime.generate.rules import as_bits
from headrace.runtime.generate.sampling import adjust as adjust_on_device
from headrace.runtime.generate.sampling import known_logprobs, sample
from headrace.runtime.generate.sampling import uniform as uniform_on_device

V = 211


def asked(number: int) -> Row:
    """One of many kinds of rows."""
    random = np.random.default_rng(number)
    options = GenerateOptions(
        temperature=float(random.choice([0, 0.4, 1.0, 1.5])),
        top_k=int(random.choice([0, 1, 5, 40, V, 5000])),
        top_p=float(random.choice([1.0, 0.9, 0.3, 0.01])),
        min_p=float(random.choice([0.0, 0.1, 1.0])),
        repetition_penalty=float(random.choice([1.0, 1.2])),
        presence_penalty=float(random.choice([0.0, 0.7])),
        frequency_penalty=float(random.choice([0.0, -0.3])),
        logprobs=[None, 0, 3][number % 3],
    )
    biased = np.unique(random.integers(0, V, number % 7))
    return Row(
        options,
        seed=int(random.integers(1 << 62)) * int(random.choice([-1, 1])),
        place=int(random.integers(5000)),
        prompt=random.integers(0, V + 20, number % 11),
        new=random.integers(0, V, number % 13),
        biased=biased,
        biases=np.where(random.random(len(biased)) < 0.3, -np.inf, random.normal(size=len(biased))).astype(np.float32),
        allowed=as_bits(tuple(range(number % V, V, 2)), V) if number % 4 == 1 else None,
    )


def test_noise_is_the_same_number() -> None:
    for number in range(20):
        row = asked(number)
        right = uniform_on_device(torch.tensor([row.seed]), torch.tensor([row.place]), V)
        np.testing.assert_array_equal(uniform(row, V), right[0].numpy())


@pytest.mark.parametrize("part", range(4))
def test_a_row_is_chosen_as_torch_chooses_it(part: int) -> None:
    rows = [asked(number) for number in range(100 * part, 100 * part + 100)]
    logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(part)) * 3
    batch = batched(rows, V)
    np.testing.assert_allclose(
        np.stack([adjust(one, row) for one, row in zip(logits.numpy(), rows, strict=True)]),
        adjust_on_device(logits, batch).numpy(), rtol=1e-6, atol=1e-6,
    )  # fmt: skip
    found = sample(logits, batch)
    known = known_logprobs(found, rows) if found.logprobs is not None else [None] * len(rows)
    for one, row, token, right in zip(logits.numpy(), rows, found.ids.tolist(), known, strict=True):
        got, own = choose(one, row)
        assert got == token, row
        assert (own is None) is (right is None)
        if own is not None and right is not None:
            assert own.token_id == right.token_id
            np.testing.assert_allclose(own.logprob, right.logprob, atol=1e-5)
            assert [place for place, _ in own.top] == [place for place, _ in right.top]


def test_logits_stay_as_they_are() -> None:
    logits = np.linspace(-1, 1, V, dtype=np.float32)
    before = logits.copy()
    for number in range(12):
        choose(logits, asked(number))
    np.testing.assert_array_equal(logits, before)
