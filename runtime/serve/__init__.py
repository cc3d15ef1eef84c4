"""Models behind HTTP: requests of many clients gathered into batches, in the dialects that clients speak."""
