"""The eager model as the frontend runs it: what it accepts, what it returns, what its head is."""
