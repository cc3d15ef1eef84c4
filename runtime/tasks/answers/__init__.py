"""What tasks make answers of: scores, labelled parts and spans of a text, vectors, and the containers they come in."""
