"""A checkpoint to a traced `Program`: one export, with every attention as one node and every fact that shows here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from headrace.frontend.capture.attention import evaluating
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.export.exporter import export
from headrace.frontend.facts.config_claims import config_hash
from headrace.frontend.facts.pipeline import cut_head, look_at, read_evidence, read_facts, read_signature
from headrace.frontend.facts.wish import for_wish
from headrace.frontend.load.checkpoint import Checkpoint
from headrace.frontend.probe.behaviour import Behaviour
from headrace.ir import PoolKind, Program, Source, Stage


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
    with _padding_id(checkpoint.config):
        checkpoint = for_wish(checkpoint, wish)
    module, config = checkpoint.module, checkpoint.config
    model = EagerModel.of(module, config)  # refuses what is no Python code, before its attributes are looked at
    with _padding_id(config), evaluating(module):
        look = look_at(checkpoint, model, pools)
        served = look.served
        exported = export(served, look.inputs, look.given, config, additive=look.model.seen.reads_masks)
        exported, rows = cut_head(exported, look)
    program = Program(
        exported=exported,
        source=_source(checkpoint),
        stage=Stage.TRACED,
        dtype=str(next(p.dtype for p in module.parameters() if p.is_floating_point())).removeprefix("torch."),
        signature=read_signature(exported, look, rows),
        facts=read_facts(exported, look),
        evidence=read_evidence(exported, look),
    )
    return Traced(program, Behaviour(served, look.model))


@contextmanager
def _padding_id(config: Any) -> Iterator[None]:
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


def _source(checkpoint: Checkpoint) -> Source:
    versions = (("torch", str(torch.__version__)), ("transformers", transformers.__version__))
    count = sum(p.numel() for p in checkpoint.module.parameters())
    return Source(checkpoint.name, config_hash(checkpoint.config), versions, count)
