"""Parity: record on one machine what a model computes inside, and check on another that it computes the same."""
