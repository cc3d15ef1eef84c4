"""A linear layer and its activation in one kernel."""
