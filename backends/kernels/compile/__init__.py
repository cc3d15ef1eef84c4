"""Our kernels compiled ahead of time, for devices that need not be here."""
