"""What a client may ask, a module a kind of question: the form of its body, and how it is answered."""
