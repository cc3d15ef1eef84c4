"""Sentence-transformers' pipelines: which modules, what they say of texts, and what their vectors are compared by."""
