"""The names that deployment users know a model's inputs and outputs by."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from headrace.ir import CROSS, CacheKind, OutputKind, Program, Role

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


# Of states, by the operator that keeps one.
STATES = {"causal_conv1d": "conv", "token_shift": "shift", "selective_scan": "ssm", "chunk_scan": "ssm"}
RECURRENT = "recurrent"


def pasts(program: Program) -> dict[str, Past]:
    """The names of a cached program's caches.

    Pairs of keys and values are numbered in the order in which they are read, and so are states of each kind.
    """
    caches, made = program.form.caches, dict[str, Past]()
    paged = [one for one in caches if one.kind is CacheKind.PAGED and one.group != CROSS.name]
    for order, cache in enumerate(paged):
        layer, what = order // 2, ("key", "value")[order % 2]
        heads, width = cache.sizes
        sizes = (BATCH, heads, PAST, width)
        made[cache.name] = Past(f"past_key_values.{layer}.{what}", f"present.{layer}.{what}", sizes)
    rows, counts = [one for one in caches if one.kind is CacheKind.ROW], Counter[str]()
    for cache, spec in zip(rows, program.nodes.recurrent, strict=True):
        kind = STATES.get(spec.operator, RECURRENT)
        made[cache.name] = Past(f"past_{kind}.{counts[kind]}", f"present_{kind}.{counts[kind]}", (BATCH, *cache.sizes))
        counts[kind] += 1
    return {cache.name: made[cache.name] for cache in caches if cache.name in made}
