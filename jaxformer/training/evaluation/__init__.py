"""What a model scores on validation data."""
