"""Evaluation on validation data."""
