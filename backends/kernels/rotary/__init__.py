"""Rotary position encodings, and the norm of each head before them."""
