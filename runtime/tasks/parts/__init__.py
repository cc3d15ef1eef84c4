"""Parts of a text as answers: labelled tokens and words, what they make together, the likeliest spans."""
