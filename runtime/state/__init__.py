"""Model states: what lives between the calls of one compiled program."""
