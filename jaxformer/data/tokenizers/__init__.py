"""Reads, trains and saves tokenizers."""
