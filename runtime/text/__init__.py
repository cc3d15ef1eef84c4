"""Texts to token ids: what is accepted, how long it may be, how it is cut, and where its tokens stand."""
