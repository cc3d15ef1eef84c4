"""The names that deployment users know a model's inputs and outputs by: transformers' own, which tokenizers return."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from headrace.ir import CROSS, CacheKind, OutputKind, Program, Role

BATCH, SEQUENCE = "batch_size", "sequence_length"
# Of tokens that were run before, and of those with the new ones.
PAST, TOTAL, ENCODED = "past_sequence_length", "total_sequence_length", "encoder_sequence_length"
IDS, TYPES, PADDING, POSITIONS = "input_ids", "token_type_ids", "attention_mask", "position_ids"
LENGTHS = "sequence_lengths"
# Beside an encoder's rows: which of those are real, and which of the decoder's own tokens.
ENCODED_PADDING, DECODED_PADDING = "encoder_attention_mask", "decoder_attention_mask"
# What an encoder made of a text, of which a decoder's first step makes what it crosses to, and whether it has done so.
ENCODED_ROWS, CACHED = "encoder_hidden_states", "use_cache_branch"
INPUTS = {Role.IDS: IDS, Role.PADDING: PADDING, Role.POSITIONS: POSITIONS, Role.TYPES: TYPES}
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
    OutputKind.CROSS: "cross",
    OutputKind.TAPS: "taps",
}
# What finished answers are called: vectors at the length that the folder asks for, scores by the labels' rule.
FINISHED_VECTOR, FINISHED_SCORES = "sentence_embedding", "probabilities"
RESERVED = frozenset({PADDING, POSITIONS, LENGTHS, *OUTPUTS.values(), FINISHED_VECTOR, FINISHED_SCORES})
# The files of an encoder and of its decoder; of any other model there is one.
MODEL, ENCODER, DECODER = "model", "encoder_model", "decoder_model_merged"
# Under this key the model's own metadata says what the manifest says.
METADATA = "headrace"


class Past(NamedTuple):
    """What one cache is called before and after a step, and its sizes: a name is a free one.

    What an encoder made is the same after: it is returned by no step, under no name.
    """

    before: str
    after: str
    sizes: tuple[str | int, ...]

    def shape(self, length: int, batch: int) -> tuple[int, ...]:
        """The sizes of so many rows of so many sequences."""
        known = {PAST: length, ENCODED: length, BATCH: batch}
        return tuple(known[size] if isinstance(size, str) else size for size in self.sizes)


# Of states, by the operator that keeps one.
STATES = {"causal_conv1d": "conv", "token_shift": "shift", "selective_scan": "ssm", "chunk_scan": "ssm"}
RECURRENT = "recurrent"


def pasts(program: Program) -> dict[str, Past]:
    """The names of a cached program's caches.

    Pairs of keys and values are numbered in the order in which they are read, and so are states of each kind.
    """
    caches, made, counts = program.form.caches, dict[str, Past](), Counter[str]()
    paired = CROSS in program.form.groups
    for cache in (one for one in caches if one.kind is CacheKind.PAGED):
        half = "" if not paired else "encoder." if cache.group == CROSS.name else "decoder."
        layer, what = counts[half] // 2, ("key", "value")[counts[half] % 2]
        counts[half] += 1
        encoded, (heads, width) = cache.group == CROSS.name, cache.sizes
        after = "" if encoded else f"present.{layer}.{half}{what}"
        sizes = (BATCH, heads, ENCODED if encoded else PAST, width)
        made[cache.name] = Past(f"past_key_values.{layer}.{half}{what}", after, sizes)
    rows = [one for one in caches if one.kind is CacheKind.ROW]
    for cache, spec in zip(rows, program.nodes.recurrent, strict=True):
        kind = STATES.get(spec.operator, RECURRENT)
        made[cache.name] = Past(f"past_{kind}.{counts[kind]}", f"present_{kind}.{counts[kind]}", (BATCH, *cache.sizes))
        counts[kind] += 1
    return {cache.name: made[cache.name] for cache in caches}
