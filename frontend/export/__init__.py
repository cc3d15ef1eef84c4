"""One export of the model's code with a dynamic batch and sequence, and what stands in its way."""
