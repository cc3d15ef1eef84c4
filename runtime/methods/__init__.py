"""The tasks as methods of a compiled model that are not in model.py: vectors, labels, several at once, iterators."""
