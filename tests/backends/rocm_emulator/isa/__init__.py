"""The instruction set: bytes to instructions, and AMD's pseudocode of each to a function over lanes."""
