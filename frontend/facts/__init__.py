"""What is found out about a model beside its graph: positions, limits, head, labels, claims, axes of arrays."""
