"""What sequences keep between steps: blocks of keys and values, rows of states, and prefixes that are known."""
