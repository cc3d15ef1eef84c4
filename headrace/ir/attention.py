"""Attention and recurrent nodes as the IR types them: who sees whom, and how that was proven."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class AttentionType(StrEnum):
    """Contract A: which rows an attention's keys come from, and which of them a query sees."""

    DECODER = "DECODER"
    ENCODER_ONLY = "ENCODER_ONLY"
    ENCODER = "ENCODER"
    ENCODER_DECODER = "ENCODER_DECODER"


class MaskKind(StrEnum):
    """The relation between query and key positions, before the window narrows it.

    CHUNKED is causal within blocks of `window.left + 1` positions, counted from a sequence's first token (Llama 4).
    """

    CAUSAL = "causal"
    CHUNKED = "chunked"
    BIDIRECTIONAL = "bidirectional"
    OPAQUE = "opaque"

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self in (MaskKind.CAUSAL, MaskKind.CHUNKED)


class Window(NamedTuple):
    """How many keys a query sees before and after itself, inclusive; -1 is without bound."""

    left: int = -1
    right: int = -1

    @property
    def bounded(self) -> bool:
        """Whether the window narrows what the mask kind alone would show."""
        return self.left >= 0 or self.right > 0

    def __str__(self) -> str:
        """E.g. `(64, 64)` or `(*, 0)`."""
        return "({}, {})".format(*("*" if side < 0 else side for side in self))


EVERYTHING = Window()


class Verdict(StrEnum):
    """What the probe saw of one attention (contract A3).

    Of those that are alike in everything but their weights it runs the first and the last; the others are proven on
    those.
    """

    PENDING = "pending"
    PROVEN = "proven"
    PROVEN_SHRUNK = "proven with the window shrunk"
    PROVEN_ALIKE = "proven on its like"
    UNPROBED = "unprobed"


class BiasKind(StrEnum):
    """What is added to the scaled scores beside the mask.

    Of the distance between query and key alone, so that a kernel computes it and no [T, T] tensor exists, are
        ALIBI: `-slope[head] * |key - query|`; its values are [Hq], the slopes.
        RELATIVE: `table[head, clamp(key - query, -reach, reach) + reach]`; its values are [Hq, 2 * reach + 1], rows
            contiguous. T5's and MPNet's buckets are one, since distances past the largest share a bucket.
    TENSOR is any other.
    """

    NONE = "none"
    TENSOR = "tensor"
    ALIBI = "alibi"
    RELATIVE = "relative"


@dataclass(frozen=True)
class AttentionSpec:
    """One attention node. `call_order` is its key: module paths may repeat where layers share weights.

    `recovered` where the model's own code computes it and no interface announced it. `compressed` where its caches hold
    a row a token that the model's keys and values are linear maps of: it is key and value of the one head that all
    queries read.
    """

    node: str
    call_order: int
    type: AttentionType
    q_heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    scale: float
    mask: MaskKind
    window: Window = EVERYTHING
    softcap: float = 0.0
    sinks: bool = False
    bias: BiasKind = BiasKind.NONE
    mask_node: str | None = None
    latent: bool = False
    recovered: bool = False
    compressed: bool = False
    verdict: Verdict = Verdict.PENDING
    provenance: str = ""

    def __post_init__(self) -> None:
        """Refuse what no attention can be."""
        if self.kv_heads < 1 or self.q_heads % self.kv_heads:
            raise ValueError(f"{self.node}: {self.q_heads} query heads do not divide into {self.kv_heads} key heads")
        if self.type is AttentionType.DECODER and not self.mask.causal:
            raise ValueError(f"{self.node}: DECODER needs a causal mask, not {self.mask}")

    def sees(self, query: int, key: int) -> bool:
        """Whether the query at one position sees the key at another, both of one sequence."""
        left, right = self.window
        if self.mask.causal and key > query:
            return False
        if self.mask is MaskKind.CHUNKED:
            return query // (left + 1) == key // (left + 1)
        return not (0 <= left < query - key) and not (0 <= right < key - query)


@dataclass(frozen=True)
class RecurrentSpec:
    """One node that carries state along the sequence without attention.

    Attributes:
        operator: which recurrence it is, by the name of its operator.
        state: the sizes of the state that one sequence leaves behind; empty where the node does not say.
        causal: whether the operator looks back only; None where its arguments do not say.
        verdict: what the probe saw of the stack that the node stands in.
        recovered: whether a pass put the operator where the model's own code convolves or shifts.
    """

    node: str
    call_order: int
    operator: str
    state: tuple[int, ...] = ()
    causal: bool | None = None
    verdict: Verdict = Verdict.PENDING
    provenance: str = ""
    recovered: bool = False
