"""Exports of a trained model: weight formats, the model card, and the hub."""
