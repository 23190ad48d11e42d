"""Hugging Face checkpoints: config.json, tensors, tasks and a forward pass under their names."""
