"""Tensors in files, and how their names and layouts map to ours."""
