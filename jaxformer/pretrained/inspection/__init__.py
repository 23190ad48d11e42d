"""Inspects a trained model: tokens, nearest neighbours, and predictions for masks."""
