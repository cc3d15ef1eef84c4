"""The type of every attention, recurrence and bias, read from the graph and held against the eager model."""
