"""Tokenizers: read, trained, stored."""
