"""Recurrences over packed sequences: a program runs one sequence, of some channels or a head, from its first token."""
