"""Training objectives: what the model sees of a text, and what it predicts."""
