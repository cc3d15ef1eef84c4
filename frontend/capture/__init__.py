"""Transformers' interfaces for attention, masks and recurrences, implemented by the IR's operators while tracing."""
