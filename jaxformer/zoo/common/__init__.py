"""Shared parts of related systems: builders, config.json fields, names of tensors and classes."""
