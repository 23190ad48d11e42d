"""Vectors of texts, and scores of pairs of texts, as in sentence-transformers."""
