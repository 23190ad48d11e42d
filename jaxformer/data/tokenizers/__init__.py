"""Tokenizers: reading, training and storing them."""
