"""Training objectives: how inputs and targets are made from a text."""
