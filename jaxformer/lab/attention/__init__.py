"""Attention maps of a trained model, as figures and as an interactive page."""
