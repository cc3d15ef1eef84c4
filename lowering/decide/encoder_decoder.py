"""Hold the two halves of an encoder-decoder against what their types say of each other (contract A3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import AttentionTypeError
from headrace.ir import AttentionSpec, AttentionType, Program

TEXT, TARGET = "text", "target"
ROWS = {TEXT: "encoder", TARGET: "decoder"}
# What a new last token of one half must do to the rows of a half, by the type that says so.
MEANING = (
    (AttentionType.ENCODER, TEXT, TEXT, True),
    (AttentionType.DECODER, TARGET, TARGET, False),
    (AttentionType.ENCODER_DECODER, TARGET, TEXT, False),
    (AttentionType.ENCODER_DECODER, TEXT, TARGET, True),
)


class Eager(Protocol):
    """The original module's behaviour."""

    def stack_change(self, length: int, changed: str = TEXT, seen: str = TEXT) -> float:
        """Relative change of one half's rows when the last token of a half changes; earlier rows of the same half."""
        ...


@dataclass(frozen=True)
class Finding:
    """What a new last token in one half did to the rows of a half, and whether `spec` and its like say so."""

    spec: AttentionSpec
    changed: str
    seen: str
    expected: bool
    change: float
    allowed: float
    end: str = "last token of the text"

    @property
    def agrees(self) -> bool:
        """Whether the rows changed where they must, and only there."""
        return (self.change > self.allowed) is self.expected

    @property
    def text(self) -> str:
        """What was seen, as a clause."""
        rows = "rows before it" if self.changed == self.seen else f"{ROWS[self.seen]}'s rows"
        did = f"changed the {rows} by {self.change:.1e} (relative)" if self.change else f"left the {rows} bit-equal"
        return f"a new {self.end if self.changed == TEXT else 'last token of the target'} {did}"


def findings(program: Program, eager: Eager, length: int, tolerance: float) -> Iterator[Finding]:
    """Change either half and look at both, as far as an attention's type says what must come of it.

    Args:
        tolerance: of the relative change of rows that must not change, where experts are routed.
    """
    allowed = tolerance if program.evidence.routed_experts else 0.0
    end = "last quarter of the array" if program.signature.arrays else "last token of the text"
    bidirectional = {spec.type for spec in program.nodes.attention} & {AttentionType.ENCODER_ONLY}
    for type_, changed, seen, expected in MEANING:
        spec = next((spec for spec in program.nodes.attention if spec.type is type_), None)
        # A decoder that is causal in some layers alone says nothing of the whole.
        if spec is not None and not (type_ is AttentionType.DECODER and bidirectional):
            yield Finding(spec, changed, seen, expected, eager.stack_change(length, changed, seen), allowed, end)


def require(found: Iterator[Finding]) -> None:
    """Refuse the first finding that disagrees."""
    for one in found:
        if not one.agrees:
            raise AttentionTypeError(
                f"{one.spec.node} ({one.spec.provenance}) and its like are declared {one.spec.type}, but {one.text}. "
                f"It {'must' if one.expected else 'must not'} change them: the annotation or the model is wrong; the "
                "model is refused."
            )
