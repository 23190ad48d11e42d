"""Vectors of texts, and scores of pairs of texts, as sentence-transformers makes them."""
