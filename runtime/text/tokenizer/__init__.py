"""A tokenizer as it is asked: a copy that nobody else holds, by its library directly where that reads alike."""
