"""Raw outputs to the answers of each task."""
