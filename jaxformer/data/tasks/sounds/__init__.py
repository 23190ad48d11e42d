"""Sounds with transcripts or labels, and sounds with masked frames."""
