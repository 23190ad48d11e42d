"""Custom code: a folder for transformers with its own modeling file."""
