"""Edits of a graph that only a GPU profits from."""
