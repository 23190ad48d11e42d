"""Checks that a machine and its jaxlib compute correctly."""
