"""Folders as transformers keeps them: configuration, tensors, heads."""
