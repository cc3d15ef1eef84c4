"""Linear layers of few rows, as a step of decoding has them: what bounds them is reading their weights."""
