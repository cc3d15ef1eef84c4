"""Executables to answers: states, batching, tasks, artifacts and the command line."""
