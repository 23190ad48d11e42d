"""Tokens and text while they are generated."""
