"""The private corners of transformers that the frontend touches, and no other room does."""
