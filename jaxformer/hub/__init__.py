"""Hugging Face checkpoints: config.json, tensors, tasks, and forward passes as in transformers."""
