"""What tokenizers of transformers call what they return; callers bring token types of their own under the same name."""

IDS, TYPES = "input_ids", "token_type_ids"
