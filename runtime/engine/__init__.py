"""Encoded requests to raw outputs: plan, run, collect."""
