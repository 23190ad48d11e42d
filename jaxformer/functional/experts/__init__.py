"""Mixtures of experts: routing, the grouped product, and the losses that balance the load."""
