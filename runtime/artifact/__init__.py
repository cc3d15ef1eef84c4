"""A compiled or exported model as a folder: written whole or not at all, read back with suspicion."""
