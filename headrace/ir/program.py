"""An exported graph and the facts that the passes established about it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from headrace.ir.attention import AttentionSpec, RecurrentSpec
from headrace.ir.cache import Cache, CacheGroup, QuantizedCaches
from headrace.ir.decision import Decision
from headrace.ir.evidence import Evidence
from headrace.ir.facts import Facts, HeldWeights, Quantized, Source
from headrace.ir.part import require
from headrace.ir.serialize import INLINE
from headrace.ir.signature import Signature, Tap

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Layout(StrEnum):
    """How the sequences of a batch lie: one a row and padded, or after one another in a single row.

    In the cached layout the row holds what is new of each sequence, and what came before lies in caches.
    """

    PADDED = "padded"
    PACKED = "packed"
    CACHED = "cached"


class Stage(StrEnum):
    """How far a program has come; each verifier rule belongs to one."""

    TRACED = "traced"
    TYPED = "typed"
    LOWERED = "lowered"


@dataclass(frozen=True)
class Nodes:
    """The typed nodes of the graph.

    Attributes:
        attention: one spec an attention, in call order.
        recurrent: one spec a node that carries state along the sequence, in call order.
        taps: the nodes whose values the output of kind TAPS holds side by side, in that order.
    """

    attention: tuple[AttentionSpec, ...] = ()
    recurrent: tuple[RecurrentSpec, ...] = ()
    taps: tuple[Tap, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two specs of one node.

        Raises:
            PartError: names the node.
        """
        names = [spec.node for spec in self.attention] + [spec.node for spec in self.recurrent]
        require("specs", [(names.count(name) > 1, name, "two specs are of it") for name in dict.fromkeys(names)])


@dataclass(frozen=True)
class Form:
    """How the program runs.

    Attributes:
        layout_why: what keeps the program padded on a target that runs packed ones; empty where nothing does.
        quantized: the linear layers that multiply in fewer bits, None where all keep the program's dtype.
        weights: the matrices that a compiled program holds otherwise than its graph does, by format.
        caches: what a cached program keeps between steps, each an input of that name that it writes in place.
        groups: its paged caches that are read alike, in the order of the block tables.
        block: the rows of a block in paged caches.
        whole_why: what keeps keys and values in caches where a narrower row that they are maps of could be; empty where
            nothing does.
        quantized_caches: the keys and values that are kept in fewer bits, None where all keep the program's dtype.
    """

    layout: Layout = Layout.PADDED
    layout_why: str = ""
    quantized: Quantized | None = None
    weights: tuple[HeldWeights, ...] = ()
    caches: tuple[Cache, ...] = ()
    groups: tuple[CacheGroup, ...] = ()
    block: int = 16
    whole_why: str = ""
    quantized_caches: QuantizedCaches | None = None

    def __post_init__(self) -> None:
        """Refuse more layers in fewer bits than there are, and caches of a program that keeps none.

        Raises:
            PartError: names the count.
        """
        made = self.quantized
        broken = made is not None and not 0 <= made.layers <= made.among
        names = [one.name for one in self.caches]
        require(
            "caches",
            [
                *((names.count(name) > 1, name, "named twice") for name in dict.fromkeys(names)),
                (
                    bool(names) is not (self.layout is Layout.CACHED),
                    "caches",
                    f"{len(names)} in a {self.layout} program",
                ),
                (self.block < 1, "block", f"{self.block} rows"),
            ],
        )
        require("quantized", [(broken, "quantized", f"{made.layers} of {made.among} layers" if made else "")])


@dataclass(frozen=True)
class Program:
    """An exported graph and the typed facts about it. Passes return new programs; nothing is changed in place.

    Attributes:
        exported: the graph, None where only the facts were read back from a manifest.
        source: where it came from; for messages and manifests.
        dtype: the dtype that the weights and activations run in, as torch names it.
        signature: what goes in and what comes out.
        facts: positions, limits, labels, pooling, rules of text.
        evidence: what was seen and claimed of the model, that the passes weigh.
        nodes: its attentions and recurrences, typed.
        decision: what was decided of it: padding, route, prefill, tasks.
        form: how it runs.
    """

    exported: ExportedProgram | None = field(repr=False, compare=False)
    source: Source
    stage: Stage
    dtype: str
    signature: Signature = field(metadata=INLINE)
    facts: Facts = field(metadata=INLINE)
    evidence: Evidence = field(default_factory=Evidence, metadata=INLINE)
    nodes: Nodes = field(default_factory=Nodes, metadata=INLINE)
    decision: Decision = field(default_factory=Decision, metadata=INLINE)
    form: Form = field(default_factory=Form, metadata=INLINE)

    @classmethod
    def of(cls, **facts: Any) -> Program:
        """A program of facts by name, each of which finds its own part: `Program.of(stage=..., vocabulary=...)`."""
        own = {name: facts[name] for name in facts.keys() - PART_OF.keys()}
        return cls(**own, **{name: kind(**_of_part(name, facts)) for name, kind in PARTS.items()})

    def with_(self, **changes: Any) -> Program:
        """A copy with some facts replaced, by their own names: each finds its part."""
        own = {name: changes[name] for name in changes.keys() - PART_OF.keys()}
        parts = {PART_OF[name] for name in changes.keys() & PART_OF.keys()}
        return replace(self, **own, **{part: replace(getattr(self, part), **_of_part(part, changes)) for part in parts})

    def of_graph(self, exported: ExportedProgram, **changes: Any) -> Program:
        """A copy for a graph that lacks some of the nodes, without the facts about those."""
        left = {node.name for node in exported.graph.nodes}
        return self.with_(
            exported=exported,
            attention=tuple(spec for spec in self.nodes.attention if spec.node in left),
            recurrent=tuple(spec for spec in self.nodes.recurrent if spec.node in left),
            recovered=tuple(name for name in self.evidence.recovered if name in left),
            **changes,
        )

    def placeless(self) -> Program:
        """A copy that names its source without the folders above it, which are its machine's own."""
        return self.with_(source=replace(self.source, name=PurePath(self.source.name).name))

    @property
    def graph(self) -> ExportedProgram:
        """The exported graph; a program read back from a manifest has none."""
        assert self.exported is not None, "this program holds facts only"
        return self.exported

    def as_text(self) -> str:
        """The program on a page: facts, then one line an attention, then the decisions."""
        from headrace.ir.printer import program_text

        return program_text(self)


PARTS: dict[str, Any] = {
    "signature": Signature,
    "facts": Facts,
    "evidence": Evidence,
    "nodes": Nodes,
    "decision": Decision,
    "form": Form,
}
# The part that holds a fact: names are unique across them.
PART_OF = {one.name: part for part, kind in PARTS.items() for one in fields(kind)}


def _of_part(part: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if PART_OF.get(name) == part}
