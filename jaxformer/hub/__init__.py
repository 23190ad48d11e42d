"""Hugging Face checkpoints: config.json, tensors, tasks, and transformers' forward passes."""
