"""Operators in C++ that stand in the code of a compiled program itself: what each means in plain torch, and how."""
