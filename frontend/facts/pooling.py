"""How the rows of a text become its vector: as asked for, as the folder says, by the model itself, or as suits it."""

from __future__ import annotations

from headrace.errors import TraceError
from headrace.frontend.eager.model import DryRun, EagerModel
from headrace.frontend.facts.model_outputs import PLAIN
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.ir import Head, Pooling, PoolKind


def choose_pooling(
    checkpoint: Checkpoint, model: EagerModel, pools: tuple[PoolKind, ...] | None, last: bool
) -> Pooling | None:
    """How rows become a vector; None where nothing does.

    Args:
        pools: what the caller chose, () for the model's own vector; None follows the folder, then the model.
        last: whether its own vector is of the last position of a text.

    Raises:
        TraceError: the model's own vector was asked for, and it has none.
    """
    sentence, seen = checkpoint.sentence, model.seen
    if pools is not None:
        _require_own(pools, seen)
        return Pooling(pools, sentence.normalize if sentence else False, "asked for")
    if sentence is not None and sentence.pools:
        return Pooling(sentence.pools, sentence.normalize, "modules.json")
    if sentence is not None and sentence.makes_vector:
        return Pooling((), sentence.normalize, "modules.json")
    if sentence is not None and sentence.sparse:
        # Of a table of tokens: the greatest, over the text, of one number a token.
        return Pooling((PoolKind.MAX,), False, "modules.json") if seen.head is Head.NONE else None
    if seen.head not in (Head.NONE, Head.CAUSAL_LM, Head.SEQ2SEQ_LM):
        return None
    if (own := _own_pooling(checkpoint, model, last)) is not None:
        return own
    kind = PoolKind.LAST if seen.causal else PoolKind.MEAN
    return Pooling((kind,), False, f"nothing names one: {kind} suits a {_direction(seen.causal)} model", assumed=True)


def _require_own(pools: tuple[PoolKind, ...], seen: DryRun) -> None:
    if not pools and not seen.own:
        raise TraceError(
            "pooling='own' takes the vector that a model returns by itself (a projection, a pooler's output), and this "
            f"one returns none. Choose from {', '.join(PoolKind)}."
        )


def _own_pooling(checkpoint: Checkpoint, model: EagerModel, last: bool) -> Pooling | None:
    """The vector that the model itself returns, where it was made for that, or has trained it.

    A pooler's of a text is mostly left over from pretraining; not one that is of the last position.
    """
    seen = model.seen
    if not seen.own:
        return None
    if seen.own not in PLAIN:
        return Pooling((), False, f"the model returns {seen.own}")
    made_by = set(seen.own_maker.parameters()) if seen.own_maker is not None else set()
    held = dict(model.module.named_parameters(remove_duplicate=False))
    random = any(held.get(name) in made_by for name in checkpoint.missing)
    if (model.vocabulary and not last) or random:
        return None
    return Pooling((), False, f"nothing names one: the model returns {seen.own}", assumed=True)


def _direction(causal: bool) -> str:
    return "causal" if causal else "bidirectional"
