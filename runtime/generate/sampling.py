"""Logits to the next token of every row, on the device, without asking the host anything.

What decides is independent of the batch to the last bit: sums are of integers, whose order is nothing, the noise is a
hash, and what is narrowed by is a score and no place in a sorted list, where equal scores have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.runtime.generate import host_sampling
from headrace.runtime.generate.batch import Draw, Entries, History, SamplingBatch
from headrace.runtime.generate.generation import TokenLogprob
from headrace.runtime.generate.host_sampling import ONE, SPREAD_PLACE, SPREAD_SEED
from headrace.runtime.generate.row import Row

# The noise's numbers as torch reads them, which has no integers of 64 bits without a sign.
GOLDEN = host_sampling.GOLDEN - (1 << 64)
MIX = tuple((shift, factor - (1 << 64)) for shift, factor in host_sampling.MIX)

# So many scores are drawn from at a time on a host: in float64 they and what is made of them stay in its cache.
CACHED = 1 << 16


class Sampled(NamedTuple):
    """The next tokens of w rows.

    Attributes:
        ids: int64 [w].
        logprobs: of the tokens under the model's own distribution, before all options, float32 [w]; None if not asked.
        top_ids: the likeliest tokens of that distribution, int64 [w, k]; None if not asked for.
        top_logprobs: float32 [w, k].
    """

    ids: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def sample(logits: Tensor, rows: SamplingBatch) -> Sampled:
    """The next token of every row, and what is asked about it.

    The order is transformers': biases, penalties, what is ruled out, temperature, top-k, top-p, min-p.

    Args:
        logits: [w, V], in any floating dtype; not written to.
        rows: what is asked of them.
    """
    scores = adjust(logits, rows)
    best = scores.argmax(-1)
    ids = best if rows.draw is None else torch.where(rows.draw.temperature > 0, draw(scores, rows.draw), best)
    if rows.logprobs is None:
        return Sampled(ids)
    known = _log_probabilities(logits.float())
    own = known.gather(1, ids[:, None])[:, 0]
    if rows.logprobs == 0:
        return Sampled(ids, own)
    top = known.topk(min(rows.logprobs, logits.shape[1]))
    return Sampled(ids, own, top.indices, top.values)


def known_logprobs(found: Sampled, rows: Sequence[Row]) -> list[TokenLogprob | None]:
    """What each row asked to know of its token, None where it asked nothing.

    Args:
        found: on the host.
    """
    asked = [row.options.logprobs for row in rows]
    if found.logprobs is None:
        return [None] * len(rows)
    own = zip(found.ids.tolist(), found.logprobs.tolist(), strict=True)
    if found.top_ids is None or found.top_logprobs is None:
        top: list[list[tuple[int, float]]] = [[] for _ in rows]
    else:
        pairs = zip(found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True)
        top = [list(zip(ids, values, strict=True)) for ids, values in pairs]
    return [
        None if count is None else TokenLogprob(token, value, tuple(others[:count]))
        for count, (token, value), others in zip(asked, own, top, strict=True)
    ]


def adjust(logits: Tensor, rows: SamplingBatch) -> Tensor:
    """The scores [w, V] that the likeliest token is taken from: the logits themselves where nothing is asked."""
    scores = logits
    if rows.biases is not None:
        scores = _add(scores.float(), rows.biases)
    if rows.history is not None:
        scores = _penalise(scores.float(), rows.history)
    if rows.allowed is not None:
        scores = scores.masked_fill(~unpack(rows.allowed, logits.shape[1]), -torch.inf)
    return scores


def draw(scores: Tensor, rows: Draw) -> Tensor:
    """A token of each row by its probability, int64 [w]; a few rows at a time where a processor's cache is small.

    Each token that is left runs for a time of which its probability is the rate, and the first wins: the race that
    Gumbel's noise runs in logarithms. A last bit of the scores changes the winner only where two are as near as that,
    which it would of any of the many borders of a cumulative sum.
    """
    if scores.device.type != "cpu" or torch.compiler.is_compiling():
        return _race(scores, rows)
    few = max(1, CACHED // scores.shape[1])
    starts = range(0, len(scores), few)
    return torch.cat([_race(scores[i : i + few], rows.part(i, i + few)) for i in starts])


def shares(scores: Tensor, rows: Draw) -> Tensor:
    """How likely each token is drawn, the likeliest's being 1: float64 [w, V], 0 for those that are not drawn."""
    scaled = scores.float() / torch.where(rows.temperature > 0, rows.temperature, 1)[:, None]
    highest = scaled.amax(-1, keepdim=True)
    share = (scaled - highest).double().exp()
    least = _least_score(scaled, highest, share, rows)
    return share if least is None else share.masked_fill(scaled < least, 0)


def uniform(seed: Tensor, place: Tensor, width: int) -> Tensor:
    """Numbers between 0 and 1, neither among them, a hash each of its seed, place and token: float64 [w, width]."""
    token = torch.arange(width, device=seed.device)
    x = (seed * SPREAD_SEED + place * SPREAD_PLACE)[:, None] + (token * GOLDEN)[None]
    for shift, factor in MIX:
        x = (x ^ _right(x, shift)) * factor
    # The upper 52 bits: with a half behind them, the largest is not yet 1.
    return (_right(x ^ _right(x, 31), 12).double() + 0.5) * 2.0**-52


def unpack(allowed: Tensor, width: int) -> Tensor:
    """Bits, int32 [w, (width + 31) // 32], as bool [w, width]."""
    token = torch.arange(width, device=allowed.device)
    return (allowed[:, token >> 5] >> (token & 31).int() & 1).bool()


def _race(scores: Tensor, rows: Draw) -> Tensor:
    return (shares(scores, rows) / -uniform(rows.seed, rows.place, scores.shape[1]).log()).argmax(-1)


def _right(x: Tensor, shift: int) -> Tensor:
    """A shift of 64 bits without a sign, which torch has not."""
    return (x >> shift) & ((1 << (64 - shift)) - 1)


def _add(scores: Tensor, biases: Entries) -> Tensor:
    return scores.index_put((biases.rows, biases.ids), biases.values, accumulate=True)


def _penalise(scores: Tensor, history: History) -> Tensor:
    """Repetition as transformers has it, then frequency and presence as vLLM has them."""
    came = (history.rows, history.ids)
    met = torch.zeros_like(scores).index_put(came, torch.ones_like(history.new), accumulate=True) > 0
    times = torch.zeros_like(scores).index_put(came, history.new, accumulate=True)
    repetition = history.repetition[:, None]
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = torch.where(met, repeated, scores)
    return scores - history.frequency[:, None] * times - history.presence[:, None] * (times > 0)


def _least_score(scaled: Tensor, highest: Tensor, share: Tensor, rows: Draw) -> Tensor | None:
    """The score [w, 1] below which tokens are not drawn; None where every row draws from all."""
    least = None if rows.top_k is None else _least_of_the_likeliest(scaled, highest, share, rows)
    if rows.min_p is not None:
        floor = highest + rows.min_p.log().float()[:, None]
        least = floor if least is None else torch.maximum(least, floor)
    return least


def _least_of_the_likeliest(scaled: Tensor, highest: Tensor, share: Tensor, rows: Draw) -> Tensor:
    """The same of top-k, and then of top-p among those that are left. Equal scores stay or go together."""
    assert rows.top_k is not None
    assert rows.top_p is not None
    ordered = scaled.sort(-1, descending=True).values if rows.widest is None else scaled.topk(rows.widest).values
    places = torch.arange(ordered.shape[1], device=scaled.device)
    last = (rows.top_k - 1).clamp(max=ordered.shape[1] - 1)[:, None]
    lowest = ordered.gather(1, last)
    whole = torch.where(scaled >= lowest, (share * ONE).round().long(), 0).sum(-1, keepdim=True)
    held = ((ordered - highest).double().exp() * ONE).round().long()
    before = held.cumsum(-1) - held
    share_wanted = rows.top_p[:, None]
    enough = (before >= share_wanted * whole) & (share_wanted < 1)
    kept = (places <= last) & ~enough
    return torch.where(kept, ordered, torch.inf).amin(-1, keepdim=True)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Those of the model itself, float32 [w, V]; a softmax's own sum would hang on where a row lies in the batch."""
    highest = logits.amax(-1, keepdim=True)
    whole = ((logits - highest).double().exp() * ONE).round().long().sum(-1, keepdim=True)
    return logits - highest - (whole.double() / ONE).log().float()
