"""The form that a program runs in: one task's output, padded or packed."""
