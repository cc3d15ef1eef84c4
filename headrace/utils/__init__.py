"""Small tools around the interpreter and the system that several stages use."""
