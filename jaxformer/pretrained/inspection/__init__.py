"""Inspects a trained model: its tokens, their nearest neighbours, and what fills a mask."""
