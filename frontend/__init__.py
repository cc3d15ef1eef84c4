"""A model folder or module to a traced `Program`: load, trace, and every fact that shows in the eager model."""
