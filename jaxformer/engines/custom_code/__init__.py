"""Custom code: a folder for transformers with a modeling file."""
