"""Comparison with transformers; no other package but `cli` imports it."""
