"""Kernels of our own. Nothing here imports Triton until a module that holds a kernel is asked for."""
