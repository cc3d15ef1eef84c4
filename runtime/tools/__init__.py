"""What stands around the engine for people: the command line, explain, parity. Nothing imports it."""
