"""Tell the mask from the bias among what is added to scores, by the values that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from headrace import graphs, sample
from headrace.graphs.provenance import provenance
from headrace.graphs.views import arguments
from headrace.ir import EVERYTHING, MaskKind, Program, Role, Window
from headrace.lowering.recover.mask_relation import LONG, Relation, Sample, read_relation, short_batch
from headrace.lowering.recover.scores import HIDDEN, Fill, Scores, Term, Unread, split_term
from headrace.lowering.types.attention import reads_of
from headrace.ops.attention import MASK

WHOLE = Relation(MaskKind.BIDIRECTIONAL, EVERYTHING, padded=False)


@dataclass(frozen=True)
class Parts:
    """What is added to an attention's scores: a relation of positions, and the terms that are left as a bias.

    Attributes:
        mask: a mask node that says the relation already; None where there is none.
        measured: the relation was read off a long text, not off a mask node.
    """

    relation: Relation
    bias: tuple[Term, ...]
    mask: fx.Node | None = None
    measured: bool = False


@dataclass(frozen=True)
class Batch:
    """What the terms and fills are on one batch, whose real tokens are where `real` [B, S] says."""

    real: Tensor
    values: dict[fx.Node, Tensor]

    def spread(self, part: Term | Fill) -> Tensor:
        """A term or fill as [B, H or 1, S, S]: heads that share a dimension with the batch get one of their own."""
        value, (batch, length) = self.values[part.node], self.real.shape
        if part.rank not in (3, 4) or value.dim() > part.rank:
            raise Unread(f"{part.node.name} is added to scores of {part.rank} dimensions, not [batch, heads, ...]")
        value = value.reshape((1,) * (part.rank - value.dim()) + tuple(value.shape))
        if part.rank == 3:
            value = value[None] if value.shape[0] == 1 else value.reshape(batch, -1, *value.shape[1:])
        if value.shape[0] not in (1, batch) or any(size not in (1, length) for size in value.shape[-2:]):
            raise Unread(f"{part.node.name}, which is added to scores, is of another length than the text")
        return value.expand(batch, -1, length, length)

    def masks(self, term: Term) -> bool:
        """Whether a term hides keys anywhere."""
        return term.node in self.values and bool((self.values[term.node] * term.factor <= HIDDEN).any())

    def hidden(self, part: Term | Fill) -> Tensor:
        """Where a term or fill hides a key."""
        value = self.spread(part)
        return value * part.factor <= HIDDEN if isinstance(part, Term) else (value != 0) != part.inverted

    def seen(self, scores: Scores, hiding: Iterable[Term | Fill]) -> Tensor:
        """Which keys are left to each query: bool [B, 1, S, S]."""
        length = self.real.shape[1]
        hidden = torch.zeros((self.real.shape[0], 1, length, length), dtype=torch.bool)
        for part in hiding:
            one = self.hidden(part)
            if not bool((one == one[:, :1]).all()):
                raise Unread(f"{part.node.name} hides other keys from one head than from another")
            hidden = hidden | one[:, :1]
        return ~hidden & (torch.ones((length, length), dtype=torch.bool).tril() if scores.causal else True)

    def all_where(self, seen: Tensor, holds: Tensor) -> bool:
        """Whether something holds at every key that a real query sees."""
        return bool((holds | ~(seen & self.real[:, None, :, None])).all())


class Summands:
    """The terms and fills of a program's attentions."""

    def __init__(self, program: Program) -> None:
        """Nothing is evaluated before it is asked for."""
        self.program, self.reads = program, reads_of(program.graph)
        # The same for every text of a length: a mask may read these, and no other input.
        self.places = program.signature.names(Role.PADDING, Role.TARGET_PADDING, Role.POSITIONS)
        self.short = Batch(short_batch(program.facts.limits.length), {})
        self._constants = dict[fx.Node, float | None]()
        self._relations = dict[tuple[Any, ...], Relation | None]()

    def constant(self, value: Any) -> float | None:
        """A number, or the value of a tensor of one element that no input changes; None for any other."""
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), Tensor):
            return None
        if value not in self._constants:
            given = {node.name for node in graphs.ancestors([value])} & set(self.program.signature.input_names)
            fixed = value.meta["val"].numel() == 1 and not given
            self._constants[value] = float(self._evaluated({value}, self.short)[value]) if fixed else None
        return self._constants[value]

    def separate(self, scores: Scores) -> Parts:
        """The mask and the bias of an attention.

        Raises:
            Unread: a mask depends on the words of a text, or is no relation of two positions.
        """
        self._split(scores)
        fixed = set(self._fixed(scores))
        self.short.values.update(self._evaluated(fixed - self.short.values.keys(), self.short))
        hiding: tuple[Term | Fill, ...] = (*scores.fills, *filter(self.short.masks, scores.terms))
        origins = [self._origin(part.node) for part in hiding]
        relation = self._relation(scores, hiding, origins)
        seen = self.short.seen(scores, hiding)
        if not all(self.short.all_where(seen, self.short.spread(gate) == 1) for gate in scores.gates):
            raise Unread(f"a factor other than one scales some scores of {scores.out.name}")
        if not all(self.short.all_where(seen, ~self.short.hidden(fill)) for fill in scores.after):
            raise Unread(f"weights of {scores.out.name} are dropped after the softmax")
        mask = next((m for m in origins if m and _says(m, relation)), None)
        return Parts(relation, tuple(self._left(scores, seen)), mask, None in origins)

    def _origin(self, node: fx.Node) -> fx.Node | None:
        """The mask node that a node says again in other numbers; None where it says more than one, or none."""
        while node.target is not MASK:
            inputs = [n for n in node.all_input_nodes if isinstance(n.meta["val"], Tensor) and self.constant(n) is None]
            if len(inputs) != 1:
                return None
            node = inputs[0]
        return node

    def _relation(self, scores: Scores, hiding: tuple[Term | Fill, ...], origins: Sequence[fx.Node | None]) -> Relation:
        if not hiding and not scores.causal:
            return WHOLE
        key = (hiding, scores.causal)
        if key not in self._relations:
            samples = [Sample(self.short.real, self.short.seen(scores, hiding))]
            said = {_said(mask) for mask in origins if mask}
            if None in origins or not hiding:
                # A window longer than a short text shows on a long one alone, unless a mask node says it.
                real = torch.ones((1, min(LONG, self.program.facts.limits.length or LONG)), dtype=torch.bool)
                values = self._evaluated({part.node for part in hiding}, Batch(real, {}))
                samples.append(Sample(real, Batch(real, values).seen(scores, hiding)))
                said = set()
            self._relations[key] = read_relation(samples, said)
        if (relation := self._relations[key]) is None:
            raise Unread(f"the mask of {scores.out.name} ({provenance(scores.out)}) is no relation of two positions")
        return relation

    def _evaluated(self, nodes: set[fx.Node], batch: Batch) -> dict[fx.Node, Tensor]:
        return graphs.evaluate(self.program.graph, nodes, sample.batch(self.program, batch.real)) if nodes else {}

    def _split(self, scores: Scores) -> None:
        whole, scores.terms = scores.terms, []
        for term in whole:
            terms, fills = split_term(term, self.constant)
            # What is the same along a whole row changes no weight.
            scores.terms += [t for t in terms if t.node.meta["val"].shape[-1:] != (1,)]
            scores.fills += fills
        for part in _conditions(scores):
            if not self.reads[part.node] <= self.places:
                raise Unread(f"{part.node.name} hides keys from {scores.out.name} by the words of the text")

    def _fixed(self, scores: Scores) -> list[fx.Node]:
        """What has the same value for every text of a length."""
        terms = [term.node for term in scores.terms if self.reads[term.node] <= self.places]
        return terms + [part.node for part in _conditions(scores)]

    def _left(self, scores: Scores, seen: Tensor) -> Iterable[Term]:
        """The terms that change a seen score."""
        for term in scores.terms:
            # Rows of an array are no tokens, whose lengths a term could follow: it stays as it is.
            known = term.node in self.short.values and not self.program.signature.arrays
            if not known or not self.short.all_where(seen, self.short.spread(term) == 0):
                yield term


def _said(mask: fx.Node) -> tuple[MaskKind, Window]:
    given = arguments(mask)
    return MaskKind(given["kind"]), Window(*given["window"])


def _says(mask: fx.Node, relation: Relation) -> bool:
    return Relation(*_said(mask), padded=arguments(mask)["padding"] is not None) == relation


def _conditions(scores: Scores) -> list[Term | Fill]:
    """What must not depend on the words of a text."""
    return [*scores.fills, *scores.gates, *scores.after]
