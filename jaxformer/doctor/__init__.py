"""Whether a machine computes correctly."""
