"""Sampled tokens: as transformers' processors narrow them, and of their seed and place alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation import logits_process as theirs

from headrace.runtime.generate.batch import Draw, SamplingBatch, batched
from headrace.runtime.generate.options import GenerateOptions
from headrace.runtime.generate.row import Row
from headrace.runtime.generate.rules import as_bits
from headrace.runtime.generate.sampling import adjust, known_logprobs, sample, shares, uniform, unpack

V = 211
TINY = 2.0**-41  # what a share below it is rounded to, as an integer


def logits(rows: int, seed: int = 0, width: int = V) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def row(place: int = 0, seed: int = 0, **options: Any) -> Row:
    return Row(GenerateOptions(**options), seed=seed, place=place)


def spoken(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, count)


@settings(max_examples=60, deadline=None)
@given(
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 7, 50, V - 1, V, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    said=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_what_is_drawn_from_is_what_transformers_draws_from(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition: float, said: int, seed: int
) -> None:
    """The tokens that are left, and the probability of each."""
    scores, ids = logits(2, seed), torch.from_numpy(np.stack([spoken(said, seed), spoken(said, seed + 1)]))
    chain: list[Any] = [theirs.RepetitionPenaltyLogitsProcessor(repetition)]
    chain += [theirs.TemperatureLogitsWarper(temperature)]
    chain += [theirs.TopKLogitsWarper(top_k)] if top_k else []
    chain += [theirs.TopPLogitsWarper(top_p)] if top_p < 1 else []
    chain += [theirs.MinPLogitsWarper(min_p)] if min_p else []
    expected = theirs.LogitsProcessorList(chain)(ids, scores).softmax(-1)

    asked = GenerateOptions(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition
    )
    rows = [Row(asked, new=part.numpy()) for part in ids]
    batch = batched(rows, V)
    found = shares(adjust(scores, batch), batch.draw)
    found = found / found.sum(-1, keepdim=True)
    assert torch.equal(found > TINY, expected > TINY)
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-7)


def test_penalties_are_ragged_and_count_what_they_should() -> None:
    """Repetition reads prompt and answer, the others the answer, each its own row's alone."""
    scores = logits(3)
    prompts, news = [spoken(5, 1), spoken(0, 2), spoken(9, 3)], [spoken(0, 4), np.array([7, 7, 9, 7]), spoken(30, 5)]
    options = [
        GenerateOptions(repetition_penalty=1.4),
        GenerateOptions(presence_penalty=0.5, frequency_penalty=0.25),
        GenerateOptions(repetition_penalty=0.6, frequency_penalty=-1.5, presence_penalty=2),
    ]
    rows = [Row(o, prompt=p, new=n) for o, p, n in zip(options, prompts, news, strict=True)]
    found = adjust(scores, batched(rows, V))
    for number, one in enumerate(rows):
        expected = scores[number].clone()
        for token in range(V):
            value = float(expected[token])
            if token in one.prompt or token in one.new:
                penalty = one.options.repetition_penalty
                value = value * penalty if value < 0 else value / penalty
            times = int((one.new == token).sum())
            value -= one.options.frequency_penalty * times + one.options.presence_penalty * (times > 0)
            expected[token] = value
        torch.testing.assert_close(found[number], expected, rtol=1e-6, atol=1e-6)


def test_ids_beyond_the_head_are_not_penalised() -> None:
    rows = [Row(GenerateOptions(repetition_penalty=2.0), prompt=np.array([1, V, V + 500]))]
    found = adjust(logits(1), batched(rows, V))
    assert (found != logits(1)).nonzero()[:, 1].tolist() == [1]


def mixed(count: int) -> list[Row]:
    """Rows of every kind."""
    random = np.random.default_rng(count)
    made = []
    for number in range(count):
        options = GenerateOptions(
            temperature=float(random.choice([0, 0.4, 1.0, 1.5])),
            top_k=int(random.choice([0, 1, 5, 40])),
            top_p=float(random.choice([1.0, 0.9, 0.3])),
            min_p=float(random.choice([0.0, 0.1])),
            repetition_penalty=float(random.choice([1.0, 1.2])),
            presence_penalty=float(random.choice([0.0, 0.7])),
            logprobs=3,
        )
        biased = np.unique(random.integers(0, V, 3 * (number % 3)))
        made.append(
            Row(
                options,
                seed=int(random.integers(1 << 62)),
                place=int(random.integers(1000)),
                prompt=spoken(int(random.integers(20)), number),
                new=spoken(int(random.integers(20)), number + 1),
                biased=biased,
                biases=random.normal(size=len(biased)).astype(np.float32),
                allowed=as_bits(random.permutation(V)[:60], V) if number % 4 == 0 else None,
            )
        )
    return made


@pytest.mark.parametrize("width", [V, 1024, 50257])
def test_a_row_alone_is_a_row_in_any_batch_to_the_last_bit(width: int) -> None:
    rows = [replace(one, allowed=None) if width != V else one for one in mixed(24)]
    scores = logits(len(rows), 3, width)
    whole = sample(scores, batched(rows, width))
    for number, one in enumerate(rows):
        alone = sample(scores[number : number + 1].clone(), batched([one], width))
        for found, expected in zip(alone, whole, strict=True):
            assert torch.equal(found[0], expected[number]), number
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    shuffled = sample(scores[order], batched([rows[i] for i in order], width))
    assert torch.equal(shuffled.ids, whole.ids[order])


def test_a_token_is_of_its_seed_and_place() -> None:
    scores = torch.zeros(400, V)
    same = sample(scores, batched([row(place=3, seed=5, temperature=1)] * 400, V)).ids
    assert len(set(same.tolist())) == 1
    for changed in ([row(place=i, seed=5, temperature=1) for i in range(400)],
                    [row(place=3, seed=i, temperature=1) for i in range(400)]):  # fmt: skip
        assert len(set(sample(scores, batched(changed, V)).ids.tolist())) > 150


def test_tokens_come_as_often_as_they_are_likely() -> None:
    """A chi-square of 20,000 draws; 26.1 is what 12 free cells exceed once in a hundred times."""
    scores = torch.linspace(-2, 2, 13)[None]
    count = 20_000
    like = batched([row(temperature=0.8)], 13).draw
    assert like is not None
    draw = replace(
        like, place=torch.arange(count), seed=torch.full((count,), 11), temperature=torch.full((count,), 0.8)
    )
    found = sample(scores.expand(count, -1), SamplingBatch(draw)).ids.bincount(minlength=13)
    expected = (scores[0] / 0.8).softmax(-1) * count
    assert float(((found - expected) ** 2 / expected).sum()) < 26.2


def test_noise_is_even_and_never_at_its_ends() -> None:
    seeds = torch.arange(50)
    found = uniform(seeds, seeds * 7, 4000)
    assert 0 < float(found.min()) < 1e-4
    assert 1 - 1e-4 < float(found.max()) < 1
    assert abs(float(found.mean()) - 0.5) < 3e-3
    neighbours = torch.corrcoef(torch.stack([found[:, :-1].flatten(), found[:, 1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 0.01


def test_a_cold_row_takes_the_likeliest_token_in_any_batch() -> None:
    scores = logits(6)
    rows = [row(), row(temperature=2.0), row(top_k=3), row(temperature=1.0, top_p=0.5), row(logprobs=0), row()]
    found = sample(scores, batched(rows, V)).ids
    cold = [0, 2, 4, 5]
    assert torch.equal(found[cold], scores.argmax(-1)[cold])


def test_equal_scores_are_all_kept_or_none() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 2.0]])
    for options in ({"top_k": 2}, {"top_p": 0.3}, {"top_k": 2, "top_p": 0.1}):
        batch = batched([row(temperature=1, **options)], 6)
        assert (shares(scores, batch.draw)[0] > 0).tolist() == [False, True, True, True, False, False]


def test_ruled_out_tokens_never_come() -> None:
    """Also where top-k would keep more tokens than are left."""
    scores, allowed = logits(64), np.array([3, 31, 32, 63, 210])
    rows = [replace(row(place=i, temperature=5.0, top_k=50), allowed=as_bits(allowed, V)) for i in range(64)]
    assert set(sample(scores, batched(rows, V)).ids.tolist()) <= set(allowed.tolist())
    never = np.setdiff1d(np.arange(V), allowed)
    biases = np.full(len(never), -np.inf, np.float32)
    rows = [replace(one, allowed=None, biased=never, biases=biases) for one in rows]
    assert set(sample(scores, batched(rows, V)).ids.tolist()) <= set(allowed.tolist())
    cold = [replace(one, options=GenerateOptions()) for one in rows]
    assert set(sample(scores, batched(cold, V)).ids.tolist()) <= set(allowed.tolist())


@pytest.mark.parametrize("width", [1, 31, 32, 33, 200])
def test_bits_are_unpacked_as_they_were_packed(width: int) -> None:
    kept = np.flatnonzero(np.random.default_rng(width).random(width) < 0.5)
    found = unpack(torch.from_numpy(as_bits(kept, width))[None], width)
    assert found[0].nonzero()[:, 0].tolist() == kept.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_the_models_own(dtype: torch.dtype) -> None:
    """Whatever options made of the scores, and of k alternatives the likeliest first."""
    scores = logits(3).to(dtype)
    rows = [row(logprobs=4, temperature=0.5, top_k=1), row(), row(logprobs=0, repetition_penalty=3.0)]
    found = sample(scores, batched(rows, V))
    expected = scores.double().log_softmax(-1)
    torch.testing.assert_close(found.logprobs.double(), expected.gather(1, found.ids[:, None])[:, 0], rtol=0, atol=2e-6)
    torch.testing.assert_close(found.top_logprobs.double(), expected.topk(4).values, rtol=0, atol=2e-6)
    assert found.top_ids.shape == (3, 4)
    assert sample(scores, batched([row()] * 3, V))[1:] == (None, None, None)


def test_each_row_is_told_as_many_alternatives_as_it_asked_for() -> None:
    rows = [row(logprobs=2), row(), row(logprobs=0), row(logprobs=4)]
    found = sample(logits(4), batched(rows, V))
    told = known_logprobs(found, rows)
    assert [None if one is None else len(one.top) for one in told] == [2, None, 0, 4]
    assert told[0].top[0] == (told[0].token_id, told[0].logprob)
    few = [row(logprobs=0), row()]
    assert [one and one.top for one in known_logprobs(sample(logits(2), batched(few, V)), few)] == [(), None]
    assert known_logprobs(sample(logits(1), batched([row()], V)), [row()]) == [None]


class Called(TorchDispatchMode):
    """What torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_greedy_rows_without_options_cost_one_argmax() -> None:
    scores = logits(4)
    with Called() as called:
        sample(scores, batched([row()] * 4, V))
    assert called.names == ["aten.argmax.default"]


def test_nothing_asks_the_host() -> None:
    """Fake tensors have no values: what reads one raises."""
    rows = mixed(8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = batched(rows, V)
        found = sample(torch.empty(8, V), batch)
    assert [tuple(one.shape) for one in found] == [(8,), (8,), (8, 3), (8, 3)]


def test_it_exports_with_free_rows() -> None:
    """As a piece of a step's graph."""
    rows = [row(place=i, seed=9 * i, temperature=0.5 + i / 10, top_k=i, top_p=0.9) for i in range(6)]
    like = batched(rows, V)
    held = like.draw
    assert held is not None
    widest = held.widest

    class Step(torch.nn.Module):
        def forward(self, scores: Any, temperature: Any, seed: Any, place: Any, top_k: Any, top_p: Any) -> Any:
            return sample(scores, SamplingBatch(Draw(temperature, seed, place, top_k, top_p, None, widest))).ids

    parts = (logits(6), held.temperature, held.seed, held.place, held.top_k, held.top_p)
    exported = torch.export.export(Step(), parts, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) * 6)
    few = tuple(part[:3] for part in parts)
    assert torch.equal(exported.module()(*few), sample(parts[0], like).ids[:3])
