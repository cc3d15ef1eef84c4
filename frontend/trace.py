"""A checkpoint to a traced `Program`: one export, with every attention as one node and every fact that shows here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.export import ExportedProgram

from headrace import graphs
from headrace.errors import TraceError
from headrace.frontend.capture.attention import evaluating
from headrace.frontend.eager.run import DryRun, dry_run, special_ids, without_target
from headrace.frontend.eager.signature import DECODED, ROLES, CallSignature, Served, positions, sample, signature
from headrace.frontend.export.exporter import export, free_axes
from headrace.frontend.facts.array_axes import fit_arrays
from headrace.frontend.facts.config_claims import config_hash, read_claims, read_labels
from headrace.frontend.facts.experts import regroups_tokens
from headrace.frontend.facts.filling import read_filling, reads_last_position
from headrace.frontend.facts.head import cut_rows
from headrace.frontend.facts.model_outputs import PLAIN
from headrace.frontend.facts.positions import (
    find_limits,
    find_offset,
    find_target_limits,
    read_positions,
    read_table,
    without_added_types,
)
from headrace.frontend.facts.token_scores import require_logits
from headrace.frontend.facts.wish import for_wish
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.load.modules.chain import Chain
from headrace.frontend.probe.behaviour import Behaviour
from headrace.ir import (
    BATCH as ROWS,
)
from headrace.ir import (
    SEQUENCE,
    TARGET,
    TASK_RULES,
    Axis,
    Evidence,
    Facts,
    Head,
    Input,
    Labels,
    Limits,
    Output,
    OutputKind,
    Pooling,
    PoolKind,
    Positions,
    PositionSource,
    Program,
    Signature,
    Source,
    Stage,
    Task,
)

BATCH, LENGTH = 2, 7
# What a head returns, beside the hidden rows that its choice of rows is found from.
HEAD_OUTPUTS = {
    Head.NONE: (OutputKind.HIDDEN,),
    Head.SEQUENCE: (OutputKind.SEQUENCE_LOGITS, OutputKind.HIDDEN),
    Head.TOKEN: (OutputKind.TOKEN_LOGITS,),
    Head.MASKED_LM: (OutputKind.VOCABULARY_LOGITS,),
    Head.CAUSAL_LM: (OutputKind.VOCABULARY_LOGITS, OutputKind.HIDDEN),
    Head.OTHER: (OutputKind.HIDDEN,),
}
# The same of encoder-decoders. Hidden rows are the encoder's, and a head chooses from the decoder's.
PAIR_OUTPUTS = HEAD_OUTPUTS | {
    Head.NONE: (OutputKind.DECODER_HIDDEN, OutputKind.HIDDEN),
    Head.SEQUENCE: (OutputKind.SEQUENCE_LOGITS, OutputKind.DECODER_HIDDEN),
    Head.SEQ2SEQ_LM: (OutputKind.VOCABULARY_LOGITS, OutputKind.HIDDEN),
    Head.OTHER: (OutputKind.DECODER_HIDDEN, OutputKind.HIDDEN),
}
DECODER_OUTPUTS = frozenset({OutputKind.DECODER_HIDDEN, OutputKind.VOCABULARY_LOGITS})


@dataclass(frozen=True)
class Traced:
    """A traced program and the eager module's behaviour, which the probe measures it against."""

    program: Program
    behaviour: Behaviour


def trace(checkpoint: Checkpoint, pools: tuple[PoolKind, ...] | None = None, wish: str | None = None) -> Traced:
    """Export the model once, with a dynamic batch and sequence.

    Args:
        pools: how rows become a vector, () for the model's own one; None follows the folder, else takes the model's
            own where it was made for that, else mean for a bidirectional model and last for a causal one.
        wish: the task that is asked for, see `for_wish`.

    Raises:
        TraceError: the code can't be exported so.
    """
    with _padding_id(checkpoint.config, checkpoint.module):
        checkpoint = for_wish(checkpoint, wish)
    module, config = checkpoint.module, checkpoint.config
    accepted = signature(module)
    with _padding_id(config, module), evaluating(module):
        accepted = without_target(module, config, accepted)
        accepted = fit_arrays(module, accepted, checkpoint.processor)
        seen = dry_run(module, config, accepted)
        accepted = without_added_types(module, config, accepted, seen.vocabulary)
        has_positions = "position_ids" in accepted.inputs
        offset = find_offset(module, config, accepted, seen.vocabulary) if has_positions else 0
        last = reads_last_position(module, config, accepted, seen, offset)
        pooling = _pooling(checkpoint, seen, pools, last)
        kinds = _outputs(checkpoint, seen, pooling)
        served = _served(checkpoint, accepted, seen, kinds, pooling).eval()
        inputs = _sample(config, accepted, seen.vocabulary, offset)
        arrays = {one.name: one for one in accepted.arrays}
        given = tuple(arrays.get(name) or Input(name, ROLES[name], axes=_axes(name)) for name in inputs)
        exported = export(served, inputs, given, config, additive=seen.reads_masks)
        exported, rows = _cut(exported, kinds, seen, config, offset, accepted)
    where, limits = _lengths(exported, config, accepted, offset, inputs)
    labels = _labels(checkpoint, exported, kinds, seen)
    declared = _declared(checkpoint, labels)
    program = Program(
        exported=exported,
        source=_source(checkpoint),
        stage=Stage.TRACED,
        dtype=str(next(p.dtype for p in module.parameters() if p.is_floating_point())).removeprefix("torch."),
        signature=Signature(
            inputs=given,
            outputs=_described(exported, kinds, accepted),
            head=seen.head,
            vocabulary=seen.vocabulary,
            head_rows=rows,
            head_note=seen.note,
            token_types=read_table(exported, "token_type_ids"),
            marker=accepted.marker,
            rows=seen.rows if accepted.arrays and not free_axes(accepted.arrays) else None,
        ),
        facts=Facts(
            positions=where,
            limits=limits,
            target_limits=find_target_limits(exported, config) if accepted.decodes else None,
            text=checkpoint.text,
            filling=read_filling(checkpoint.tokenizer, limits, seen.own) if last and _is_own(pooling) else None,
            labels=labels,
            pooling=pooling,
            similarity=checkpoint.similarity,
            active=checkpoint.sentence.active if checkpoint.sentence else None,
            interaction=checkpoint.interaction,
        ),
        evidence=Evidence(
            claims=read_claims(config),
            routed_experts=regroups_tokens(exported),
            attention_calls=len(seen.calls),
            recurrent_calls=seen.recurrent,
            missing=tuple(f"model.{name}" for name in checkpoint.missing),
            declared_tasks=declared,
            declared_default=next(iter(declared), None),
        ),
    )
    return Traced(program, Behaviour(served, config, seen, offset))


@contextmanager
def _padding_id(config: Any, module: nn.Module) -> Iterator[None]:
    """Sequence heads refuse a batch without a padding id, though the choice of rows that needs it is cut out."""
    text: Any = config.get_text_config() if config is not None else None
    lacks = text is not None and getattr(text, "pad_token_id", 0) is None
    if lacks:
        text.pad_token_id = 0
    try:
        yield
    finally:
        if lacks:
            text.pad_token_id = None


def _pooling(
    checkpoint: Checkpoint, seen: DryRun, pools: tuple[PoolKind, ...] | None, last: bool
) -> Pooling | None:  # fmt: skip
    sentence = checkpoint.sentence
    if pools is not None:
        _require_own(pools, seen)
        return Pooling(pools, sentence.normalize if sentence else False, "asked for")
    if sentence is not None and sentence.pools:
        return Pooling(sentence.pools, sentence.normalize, "modules.json")
    if sentence is not None and sentence.sparse:
        # Of a table of tokens: the greatest, over the text, of one number a token.
        return Pooling((PoolKind.MAX,), False, "modules.json") if seen.head is Head.NONE else None
    if seen.head not in (Head.NONE, Head.CAUSAL_LM, Head.SEQ2SEQ_LM):
        return None
    if (own := _own_pooling(checkpoint, seen, last)) is not None:
        return own
    kind = PoolKind.LAST if seen.causal else PoolKind.MEAN
    return Pooling((kind,), False, f"nothing names one: {kind} suits a {_direction(seen.causal)} model", assumed=True)


def _require_own(pools: tuple[PoolKind, ...], seen: DryRun) -> None:
    if not pools and not seen.own:
        raise TraceError(
            "pooling='own' takes the vector that a model returns by itself (a projection, a pooler's output), and this "
            f"one returns none. Choose from {', '.join(PoolKind)}."
        )


def _own_pooling(checkpoint: Checkpoint, seen: DryRun, last: bool) -> Pooling | None:
    """The vector that the model itself returns, where it was made for that, or has trained it.

    A pooler's of a text is mostly left over from pretraining; not one that is of the last position.
    """
    if not seen.own:
        return None
    if seen.own not in PLAIN:
        return Pooling((), False, f"the model returns {seen.own}")
    made_by = set(seen.own_maker.parameters()) if seen.own_maker is not None else set()
    held = dict(checkpoint.module.named_parameters(remove_duplicate=False))
    random = any(held.get(name) in made_by for name in checkpoint.missing)
    if (seen.vocabulary and not last) or random:
        return None
    return Pooling((), False, f"nothing names one: the model returns {seen.own}", assumed=True)


def _is_own(pooling: Pooling | None) -> bool:
    return pooling is not None and not pooling.kinds


def _direction(causal: bool) -> str:
    return "causal" if causal else "bidirectional"


def _outputs(checkpoint: Checkpoint, seen: DryRun, pooling: Pooling | None) -> tuple[OutputKind, ...]:
    kinds = (HEAD_OUTPUTS if seen.pair is None else PAIR_OUTPUTS)[seen.head]
    if checkpoint.sentence is not None and checkpoint.sentence.makes_rows:
        kinds = (*kinds, OutputKind.TOKEN_EMBEDDING)
    if checkpoint.sentence is not None and checkpoint.sentence.scores:
        kinds = (OutputKind.SEQUENCE_LOGITS, *kinds)
    if checkpoint.sentence is not None and checkpoint.sentence.sparse:
        kinds = (OutputKind.SPARSE_EMBEDDING, *kinds)
    return (*kinds, OutputKind.EMBEDDING) if pooling is not None else kinds


def _served(
    checkpoint: Checkpoint,
    accepted: CallSignature,
    seen: DryRun,
    kinds: tuple[OutputKind, ...],
    pooling: Pooling | None,
) -> Served:
    chain = checkpoint.sentence.chain if checkpoint.sentence else Chain()
    own = seen.own if _is_own(pooling) else ""
    require_logits(chain.scoring, seen)
    if pooling is not None:
        chain = chain.after_pooling() if own else chain.pooled_by(pooling.kinds)
    return Served(checkpoint.module, accepted, seen.backbone, seen.pair, kinds, chain, own)


def _sample(config: Any, accepted: CallSignature, vocabulary: int, offset: int) -> dict[str, Tensor]:
    if accepted.arrays:
        drawn = sample(BATCH, LENGTH, vocabulary, special_ids(config), arrays=accepted.arrays)
        return {name: drawn[name] for name in accepted.inputs}
    inputs = sample(BATCH, LENGTH, vocabulary, special_ids(config), marker=accepted.marker)
    inputs["position_ids"] = positions(BATCH, LENGTH, offset)
    # The mask is always an input, also of a model that takes none: pooling reads it.
    return {name: inputs[name] for name in ("input_ids", "attention_mask", *accepted.inputs[1:]) if name in inputs}


def _lengths(
    exported: ExportedProgram, config: Any, accepted: CallSignature, offset: int, inputs: dict[str, Tensor]
) -> tuple[Positions, Limits]:
    if accepted.arrays:
        why = "nothing in the model bounds the length" if free_axes(accepted.arrays) else "every input is of one size"
        return Positions(PositionSource.GRAPH), Limits(None, why)
    where = read_positions(exported, offset, token=int(inputs["input_ids"][0, 0]))
    return where, find_limits(where, config, graphs.bound_of(exported))


def _axes(name: str) -> tuple[Axis, Axis]:
    return (ROWS, TARGET if name in DECODED else SEQUENCE)


def _cut(
    exported: ExportedProgram,
    kinds: tuple[OutputKind, ...],
    seen: DryRun,
    config: Any,
    offset: int,
    accepted: CallSignature,
) -> tuple[ExportedProgram, PoolKind | None]:
    if seen.head is not Head.SEQUENCE or accepted.arrays:
        return exported, None
    hidden = graphs.outputs_of(exported)[1]
    exported, rows = cut_rows(exported, hidden.name, seen.vocabulary, special_ids(config), offset, accepted.marker)
    if rows is None and accepted.marker is not None:
        raise TraceError(
            f"The head looks in the text for the token {accepted.marker} and chooses among its rows in a way that the "
            "IR does not know; known are the first, the last, their mean and their maximum."
        )
    return exported, rows


def _described(exported: ExportedProgram, kinds: tuple[OutputKind, ...], accepted: CallSignature) -> tuple[Output, ...]:
    outputs = []
    for kind, node in zip(kinds, graphs.outputs_of(exported), strict=True):
        width = node.meta["val"].shape[-1]
        if isinstance(width, torch.SymInt):
            raise TraceError(f"The last dimension of {kind} follows the length of the text; a fixed width is served.")
        along = TARGET if accepted.decodes and kind in DECODER_OUTPUTS else SEQUENCE
        outputs.append(Output(kind.value, kind, int(width), along))
    return tuple(outputs)


def _labels(
    checkpoint: Checkpoint, exported: ExportedProgram, kinds: tuple[OutputKind, ...], seen: DryRun
) -> Labels | None:
    """Of the head, or of the modules that score by what the model returns."""
    head, width = seen.head, seen.width
    if checkpoint.sentence is not None and checkpoint.sentence.scores:
        scores = graphs.outputs_of(exported)[kinds.index(OutputKind.SEQUENCE_LOGITS)]
        head, width = Head.SEQUENCE, int(scores.meta["val"].shape[-1])
    return read_labels(checkpoint.config, head, width, checkpoint.activation)


def _declared(checkpoint: Checkpoint, labels: Labels | None) -> tuple[Task, ...]:
    """The tasks that the modules define, their default first; as of heads, one label alone scores."""
    several = labels is not None and len(labels.names) > 1
    tasks = checkpoint.sentence.tasks if checkpoint.sentence else ()
    return tuple(task for task in tasks if not (several and TASK_RULES[task].one_label))


def _source(checkpoint: Checkpoint) -> Source:
    versions = (("torch", str(torch.__version__)), ("transformers", transformers.__version__))
    count = sum(p.numel() for p in checkpoint.module.parameters())
    return Source(checkpoint.name, config_hash(checkpoint.config), versions, count)
