"""Sentence-transformers' modules, as modules that are traced behind the transformer: each reads and writes by name."""
