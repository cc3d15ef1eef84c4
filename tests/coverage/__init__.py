"""What Headrace does with every text architecture of the installed transformers: tiny models, rows, the page."""
