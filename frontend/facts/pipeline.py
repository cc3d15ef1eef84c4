"""The facts in the order in which they are found: of the eager model, then of its graph. Read this first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.export import ExportedProgram

from headrace import graphs
from headrace.errors import TraceError
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.run import look, without_target
from headrace.frontend.eager.signature import DECODED, ROLES, Served
from headrace.frontend.export.exporter import free_axes
from headrace.frontend.facts.array_axes import fit_arrays
from headrace.frontend.facts.config_claims import read_claims, read_labels
from headrace.frontend.facts.experts import regroups_tokens
from headrace.frontend.facts.filling import read_filling, reads_last_position
from headrace.frontend.facts.head import cut_rows
from headrace.frontend.facts.model_outputs import describe_outputs, output_kinds
from headrace.frontend.facts.pooling import choose_pooling
from headrace.frontend.facts.positions import (
    find_limits,
    find_target_limits,
    read_positions,
    read_table,
    with_defaults,
)
from headrace.frontend.facts.token_scores import require_logits
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.load.decoding import held_config, read_decoding
from headrace.frontend.load.sentence_transformers.modules.chain import Chain
from headrace.ir import (
    BATCH,
    SEQUENCE,
    TARGET,
    TASK_RULES,
    Decoding,
    Evidence,
    Facts,
    Head,
    Input,
    Labels,
    Limits,
    OutputKind,
    Pooling,
    PoolKind,
    Positions,
    PositionSource,
    Signature,
    Task,
)


def calling(checkpoint: Checkpoint) -> tuple[Callable[[EagerModel], EagerModel], ...]:
    """How the model is called, a fact at a time: each is given what those before it found."""
    return (
        without_target,
        lambda model: fit_arrays(model, checkpoint.processor),
        look,
        with_defaults,
    )


@dataclass(frozen=True)
class Look:
    """What is known of a model before its graph is.

    Attributes:
        last: whether its own vector is of the last position of a text.
        kinds: what the served forward returns, in order.
        inputs: those of the graph, with values that it is traced on.
    """

    checkpoint: Checkpoint
    model: EagerModel
    last: bool
    pooling: Pooling | None
    kinds: tuple[OutputKind, ...]
    inputs: dict[str, Tensor]

    @property
    def own(self) -> str:
        """The field in which the model returns the vector that is served; "" where one is pooled, or none is."""
        return self.model.seen.own if self.pooling is not None and not self.pooling.kinds else ""

    @property
    def given(self) -> tuple[Input, ...]:
        """The inputs with their axes."""
        arrays = {one.name: one for one in self.model.signature.arrays}
        return tuple(
            arrays.get(name) or Input(name, ROLES[name], axes=(BATCH, TARGET if name in DECODED else SEQUENCE))
            for name in self.inputs
        )

    @property
    def served(self) -> Served:
        """The module that is traced."""
        model, seen, sentence = self.model, self.model.seen, self.checkpoint.sentence
        chain = sentence.chain if sentence else Chain()
        require_logits(chain.scoring, seen)
        if self.pooling is not None:
            chain = chain.after_pooling() if self.own else chain.pooled_by(self.pooling.kinds)
        returned = (self.kinds, chain, self.own, seen.raw)
        return Served(model.module, model.signature, seen.backbone, seen.pair, *returned).eval()


def look_at(checkpoint: Checkpoint, model: EagerModel, pools: tuple[PoolKind, ...] | None) -> Look:
    """Every fact that running the model shows.

    Raises:
        TraceError: it can be called in no way that is served.
    """
    for find in calling(checkpoint):
        model = find(model)
    last = reads_last_position(model)
    pooling = choose_pooling(checkpoint, model, pools, last)
    paired, raw = model.seen.pair is not None, bool(model.seen.raw)
    kinds = output_kinds(model.seen.head, paired, checkpoint.sentence, pooling is not None, raw)
    return Look(checkpoint, model, last, pooling, kinds, _traced_on(model))


def _traced_on(model: EagerModel) -> dict[str, Tensor]:
    names = model.signature.inputs
    # The mask is always an input, also of a model that takes none: pooling reads it.
    wanted = names if model.signature.arrays else ("input_ids", "attention_mask", *names[1:])
    return {name: model.placed[name] for name in wanted}


def cut_head(exported: ExportedProgram, look: Look) -> tuple[ExportedProgram, PoolKind | None]:
    """The graph with the head's choice of rows as an operator, and which rows it chooses.

    Raises:
        TraceError: it looks for a token in the text, and chooses in a way that the IR does not know.
    """
    model = look.model
    marker = model.signature.marker
    if model.seen.head not in (Head.SEQUENCE, Head.CHOICE) or model.signature.arrays:
        return exported, None
    hidden = graphs.outputs_of(exported)[1]
    exported, rows = cut_rows(exported, hidden.name, model.vocabulary, model.avoid, model.offset, marker)
    if rows is None and marker is not None:
        raise TraceError(
            f"The head looks in the text for the token {marker} and chooses among its rows in a way that the "
            "IR does not know; known are the first, the last, their mean and their maximum."
        )
    return exported, rows


def read_signature(exported: ExportedProgram, look: Look, rows: PoolKind | None) -> Signature:
    """What the program takes and returns; `rows` are those that the head reads."""
    accepted, seen = look.model.signature, look.model.seen
    return Signature(
        inputs=look.given,
        outputs=describe_outputs(exported, look.kinds, accepted.decodes),
        head=seen.head,
        vocabulary=look.model.vocabulary,
        head_rows=rows,
        head_note=seen.note,
        token_types=read_table(exported, "token_type_ids"),
        marker=accepted.marker,
        rows=seen.rows if accepted.arrays and not free_axes(accepted.arrays) else None,
    )


def read_facts(exported: ExportedProgram, look: Look) -> Facts:
    """What texts it takes, and what its answers mean."""
    said, model = look.checkpoint, look.model
    positions, limits = _lengths(exported, look)
    return Facts(
        positions=positions,
        limits=limits,
        target_limits=find_target_limits(exported, model.config) if model.signature.decodes else None,
        text=said.text,
        filling=read_filling(said.tokenizer, limits, look.own) if look.last and look.own else None,
        labels=_labels(exported, look),
        pooling=look.pooling,
        similarity=said.similarity,
        decoding=_decoding(exported, look),
        active=said.sentence.active if said.sentence else None,
        interaction=said.interaction,
        unweighed=said.unweighed,
        raw=look.model.seen.raw,
        processor=json.dumps(said.processor, sort_keys=True) if said.processor and model.signature.arrays else "",
    )


def _decoding(exported: ExportedProgram, look: Look) -> Decoding | None:
    """How the model's own config has tokens follow one another, where its head is of a model that continues texts."""
    seen = look.model.seen
    if seen.head not in (Head.CAUSAL_LM, Head.SEQ2SEQ_LM):
        return None
    logits = graphs.outputs_of(exported)[look.kinds.index(OutputKind.VOCABULARY_LOGITS)]
    return read_decoding(held_config(look.model.module), int(logits.meta["val"].shape[-1]), pair=seen.pair is not None)


def _labels(exported: ExportedProgram, look: Look) -> Labels | None:
    """Of the head, or of the modules that score by what the model returns."""
    said, seen = look.checkpoint, look.model.seen
    head, width = seen.head, seen.width
    if said.sentence is not None and said.sentence.scores:
        scores = graphs.outputs_of(exported)[look.kinds.index(OutputKind.SEQUENCE_LOGITS)]
        head, width = Head.SEQUENCE, int(scores.meta["val"].shape[-1])
    return read_labels(said.config, head, width, said.activation)


def _lengths(exported: ExportedProgram, look: Look) -> tuple[Positions, Limits]:
    arrays = look.model.signature.arrays
    if arrays:
        why = "nothing in the model bounds the length" if free_axes(arrays) else "every input is of one size"
        return Positions(PositionSource.GRAPH), Limits(None, why)
    where = read_positions(exported, look.model.offset, token=int(look.inputs["input_ids"][0, 0]))
    return where, find_limits(where, look.model.config, graphs.bound_of(exported))


def read_evidence(exported: ExportedProgram, look: Look) -> Evidence:
    """What the passes weigh beside the graph."""
    said, seen, declared = look.checkpoint, look.model.seen, _declared(look.checkpoint, _labels(exported, look))
    return Evidence(
        claims=read_claims(said.config),
        routed_experts=regroups_tokens(exported),
        attention_calls=len(seen.calls),
        recurrent_calls=seen.recurrent,
        missing=tuple(f"model.{name}" for name in said.missing),
        declared_tasks=declared,
        declared_default=next(iter(declared), None),
    )


def _declared(checkpoint: Checkpoint, labels: Labels | None) -> tuple[Task, ...]:
    """The tasks that the modules define, their default first; as of heads, one label alone scores."""
    several = labels is not None and len(labels.names) > 1
    tasks = checkpoint.sentence.tasks if checkpoint.sentence else ()
    return tuple(task for task in tasks if not (several and TASK_RULES[task].one_label))
