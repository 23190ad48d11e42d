"""Comparison with transformers; only `cli` imports this package."""
