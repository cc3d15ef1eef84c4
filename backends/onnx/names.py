"""The names that deployment users know a model's inputs and outputs by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.ir import CROSS, Cache, CacheKind, OutputKind, Role

BATCH, SEQUENCE = "batch_size", "sequence_length"
# Of tokens that were run before, and of those with the new ones.
PAST, TOTAL = "past_sequence_length", "total_sequence_length"
IDS, PADDING, POSITIONS, LENGTHS = "input_ids", "attention_mask", "position_ids", "sequence_lengths"
INPUTS = {Role.IDS: IDS, Role.PADDING: PADDING, Role.POSITIONS: POSITIONS, Role.TYPES: "token_type_ids"}
OUTPUTS = {
    OutputKind.HIDDEN: "last_hidden_state",
    OutputKind.EMBEDDING: "embedding",
    OutputKind.TOKEN_EMBEDDING: "token_embeddings",
    OutputKind.SPARSE_EMBEDDING: "sparse_embedding",
    OutputKind.LEXICAL_WEIGHTS: "lexical_weights",
    OutputKind.MULTI_EMBEDDING: "multi_vectors",
    OutputKind.SEQUENCE_LOGITS: "logits",
    OutputKind.TOKEN_LOGITS: "logits",
    OutputKind.SPAN_LOGITS: "span_logits",
    OutputKind.VOCABULARY_LOGITS: "logits",
    OutputKind.RAW: "raw",
    OutputKind.TAPS: "taps",
}
# What finished answers are called: vectors at the length that the folder asks for, scores by the labels' rule.
FINISHED_VECTOR, FINISHED_SCORES = "sentence_embedding", "probabilities"
RESERVED = frozenset({PADDING, POSITIONS, LENGTHS, *OUTPUTS.values(), FINISHED_VECTOR, FINISHED_SCORES})
# Under this key the model's own metadata says what the manifest says.
METADATA = "headrace"


class Past(NamedTuple):
    """What one cache is called before and after a step, and its sizes: a name is a free one."""

    before: str
    after: str
    sizes: tuple[str | int, ...]

    def shape(self, length: int, batch: int) -> tuple[int, ...]:
        """The sizes of so many tokens of so many sequences."""
        return tuple({PAST: length, BATCH: batch}.get(str(size), size) for size in self.sizes)  # type: ignore[arg-type]


def pasts(caches: Sequence[Cache]) -> dict[str, Past]:
    """The names of a program's caches: pairs of keys and values are numbered in the order in which they are read."""
    paged = [one for one in caches if one.kind is CacheKind.PAGED and one.group != CROSS.name]
    made = {}
    for order, cache in enumerate(paged):
        layer, what = order // 2, ("key", "value")[order % 2]
        heads, width = cache.sizes
        sizes = (BATCH, heads, PAST, width)
        made[cache.name] = Past(f"past_key_values.{layer}.{what}", f"present.{layer}.{what}", sizes)
    return made
