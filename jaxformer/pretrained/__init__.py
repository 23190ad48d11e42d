"""Models with their weights."""
