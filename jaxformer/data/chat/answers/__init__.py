"""Finds the tokens of a conversation that a model learns."""
