"""A row of logits to its next token in numpy, where there is no torch: by the formulas of `sampling`, a row at a time.

What decides there is decided here by the same integers and the same noise, so that a seed makes the same text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.generate.generation import TokenLogprob
from headrace.runtime.generate.options import GenerateOptions
from headrace.runtime.generate.row import Row

Scores = NDArray[np.float32]
Wide = NDArray[np.float64]
# A row's largest probability as an integer: 2 ** 22 tokens of it still have a sum in 63 bits.
ONE = float(1 << 40)
# splitmix64, of Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014).
GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
# Of Knuth's generator of 64 bits: what keeps seeds, places and tokens apart.
SPREAD_SEED, SPREAD_PLACE = 6364136223846793005, 1442695040888963407
MASK = (1 << 64) - 1


def choose(logits: Scores, row: Row) -> tuple[int, TokenLogprob | None]:
    """The next token of a row of logits [V], and what is asked about it. The order is transformers', as there."""
    scores = adjust(logits, row)
    best = scores if row.options.greedy else shares(scores, row.options) / -np.log(uniform(row, len(scores)))
    token = int(best.argmax())
    return token, None if row.options.logprobs is None else _known(logits, token, row.options.logprobs)


def adjust(logits: Scores, row: Row) -> Scores:
    """The scores [V] that the likeliest token is taken from."""
    scores = logits
    if len(row.biased):
        scores = scores.copy()
        scores[row.biased] += row.biases
    if row.penalised:
        scores = _penalise(scores, row)
    if row.allowed is not None:
        bits = np.unpackbits(row.allowed.astype("<i4").view(np.uint8), bitorder="little")
        scores = np.where(bits[: len(scores)] != 0, scores, np.float32(-np.inf))
    return scores


def _penalise(scores: Scores, row: Row) -> Scores:
    asked = row.options
    prompt, new = (part[part < len(scores)] for part in (row.prompt, row.new))
    times = np.bincount(new, minlength=len(scores)).astype(np.float32)
    met = times > 0
    met[prompt] = True
    repetition = np.float32(asked.repetition_penalty)
    repeated = np.where(scores < 0, scores * repetition, scores / repetition)
    scores = np.where(met, repeated, scores)
    counted = np.float32(asked.frequency_penalty) * times + np.float32(asked.presence_penalty) * (times > 0)
    return np.asarray(scores - counted, np.float32)


def shares(scores: Scores, asked: GenerateOptions) -> Wide:
    """How likely each token is drawn, the likeliest's being 1: [V], 0 for those that are not drawn."""
    scaled = scores / np.float32(asked.temperature)
    highest = scaled.max()
    share = np.exp((scaled - highest).astype(np.float64))
    least = highest + np.float32(np.log(asked.min_p)) if asked.min_p else np.float32(-np.inf)
    top_k = min(asked.top_k or len(scores), len(scores))
    if top_k < len(scores) or asked.top_p < 1:
        least = max(least, _least_of_the_likeliest(scaled, share, top_k, asked.top_p))
    return np.where(scaled < least, 0.0, share)


def _least_of_the_likeliest(scaled: Scores, share: Wide, top_k: int, top_p: float) -> np.float32:
    """The score below which tokens are not drawn, by top-k and then top-p. Equal scores stay or go together."""
    ordered = -np.sort(-scaled)
    lowest = ordered[top_k - 1]
    if top_p >= 1:
        return np.float32(lowest)
    whole = np.rint(share[scaled >= lowest] * ONE).astype(np.int64).sum()
    held = np.rint(np.exp((ordered[:top_k] - ordered[0]).astype(np.float64)) * ONE).astype(np.int64)
    before = held.cumsum() - held
    return np.float32(ordered[:top_k][before < top_p * whole].min())


def uniform(row: Row, width: int) -> Wide:
    """Numbers between 0 and 1, neither among them, a hash each of seed, place and token: [width]."""
    first = np.uint64((row.seed * SPREAD_SEED + row.place * SPREAD_PLACE) & MASK)
    x = first + (np.arange(width, dtype=np.uint64) * np.uint64(GOLDEN))
    for shift, factor in MIX:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _known(logits: Scores, token: int, count: int) -> TokenLogprob:
    highest = logits.max()
    whole = np.rint(np.exp((logits - highest).astype(np.float64)) * ONE).astype(np.int64).sum()
    known: Any = logits - highest - np.float32(np.log(float(whole) / ONE))
    count = min(count, len(known))
    best = np.argpartition(-known, count - 1)[:count] if count else np.empty(0, np.int64)
    best = best[np.argsort(-known[best], kind="stable")]
    return TokenLogprob(token, float(known[token]), tuple((int(one), float(known[one])) for one in best))
