"""Exports of a trained model: the formats of its weights, its model card, and the hub."""
