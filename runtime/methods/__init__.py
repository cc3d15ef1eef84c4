"""The tasks as methods of a compiled model that are not in model.py: vectors, and every task over iterators."""
