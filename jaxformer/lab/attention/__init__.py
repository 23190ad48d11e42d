"""Attention maps of a trained model, as figures and an interactive page."""
