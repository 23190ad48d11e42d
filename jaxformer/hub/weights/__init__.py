"""The tensors of Hugging Face checkpoints: files, names and layouts."""
