"""Commands for Hugging Face checkpoints and the published systems."""
