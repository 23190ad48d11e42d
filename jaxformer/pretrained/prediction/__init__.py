"""Predictions for rows of a table: labels, tags, answers and embeddings of texts."""
