"""Activations that go into a product in eight bits."""
