"""Training objectives: what the model reads of a text, and what it predicts."""
