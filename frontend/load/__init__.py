"""A user's folder, hub id or module to a `Checkpoint`: the model in memory and all that its files say."""
