"""Images and sound to the arrays that a model reads, by the processor of its folder."""
