"""Processes that read requests and write answers, beside the one that runs the models."""
