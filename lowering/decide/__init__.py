"""What the types decide: proof by behaviour, route, padding, tasks."""
