"""An exported graph and the facts that the passes established about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from headrace.ir.attention import AttentionSpec, RecurrentSpec
from headrace.ir.decision import Prefill, Route, Task, TaskDecision
from headrace.ir.facts import Claim, Labels, Limits, PaddingRule, Pooling, Positions, Quantized, Source, TextRules
from headrace.ir.signature import Head, Input, Output, OutputKind, PoolKind, Tap

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Layout(StrEnum):
    """How the sequences of a batch lie: one a row and padded, or after one another in a single row."""

    PADDED = "padded"
    PACKED = "packed"


class Stage(StrEnum):
    """How far a program has come; each verifier rule belongs to one."""

    TRACED = "traced"
    TYPED = "typed"
    LOWERED = "lowered"


@dataclass(frozen=True)
class Program:
    """An exported graph and the typed facts about it. Passes return new programs; nothing is changed in place.

    Attributes:
        exported: the graph, None where only the facts were read back from a manifest.
        inputs: the graph's inputs, in order.
        vocabulary: token ids lie below it; 0 where the inputs are arrays.
        rows: hidden rows of a request where all have as many; None where they follow the sequence.
        token_types: token type ids lie below it; None where nothing bounds them.
        marker: the token whose rows the head reads, so that every text must hold it; None where it reads any.
        target_limits: the decoder's longest target, None where the graph takes no target.
        dtype: the dtype that the weights and activations run in, as torch names it.
        attention_calls: how often the eager model called transformers' attention interface.
        recovered: the attention nodes that came of the model's own code instead.
        missing: parameters that the checkpoint lacked; refused once a served output reads one.
        layout_why: what keeps the program padded on a target that runs packed ones; empty where nothing does.
        declared_tasks: what sentence-transformers modules add to the head's offer.
        taps: the nodes whose values its output of kind TAPS holds side by side, in that order.
    """

    exported: ExportedProgram | None = field(repr=False, compare=False)
    source: Source
    stage: Stage
    dtype: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    head: Head
    vocabulary: int
    positions: Positions
    limits: Limits
    rows: int | None = None
    token_types: int | None = None
    marker: int | None = None
    target_limits: Limits | None = None
    text: TextRules = field(default_factory=TextRules)
    labels: Labels | None = None
    pooling: Pooling | None = None
    head_rows: PoolKind | None = None
    head_note: str = ""
    claims: tuple[Claim, ...] = ()
    routed_experts: bool = False
    attention_calls: int = 0
    recurrent_calls: int = 0
    recovered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    declared_tasks: tuple[Task, ...] = ()
    declared_default: Task | None = None
    declared_state: str | None = None
    attention: tuple[AttentionSpec, ...] = ()
    recurrent: tuple[RecurrentSpec, ...] = ()
    padding: PaddingRule | None = None
    layout: Layout = Layout.PADDED
    layout_why: str = ""
    quantized: Quantized | None = None
    route: Route | None = None
    prefill: Prefill | None = None
    tasks: tuple[TaskDecision, ...] = ()
    taps: tuple[Tap, ...] = ()

    def with_(self, **changes: Any) -> Program:
        """A copy with some facts replaced."""
        return replace(self, **changes)

    def placeless(self) -> Program:
        """A copy that names its source without the folders above it, which are its machine's own."""
        return self.with_(source=replace(self.source, name=PurePath(self.source.name).name))

    def output(self, kind: OutputKind) -> Output | None:
        """The output of that kind, if the graph has one."""
        return next((output for output in self.outputs if output.kind is kind), None)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs, in order."""
        return tuple(given.name for given in self.inputs)

    @property
    def arrays(self) -> tuple[Input, ...]:
        """The inputs that are arrays; empty where the model reads token ids."""
        return tuple(given for given in self.inputs if given.is_array)

    @property
    def graph(self) -> ExportedProgram:
        """The exported graph; a program read back from a manifest has none."""
        assert self.exported is not None, "this program holds facts only"
        return self.exported

    def as_text(self) -> str:
        """The program on a page: facts, then one line an attention, then the decisions."""
        from headrace.ir.printer import program_text

        return program_text(self)
