"""Streams of text: sources, the tokenised corpus, packing."""
