"""Attention nodes in place of attention that a model's own code computes."""
