"""The names that deployment users know a model's inputs and outputs by."""

from __future__ import annotations

from headrace.ir import OutputKind, Role

BATCH, SEQUENCE = "batch_size", "sequence_length"
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
