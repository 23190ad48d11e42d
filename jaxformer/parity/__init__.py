"""Comparison with transformers: none of it is imported by the rest."""
