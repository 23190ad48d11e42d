"""Sentences with a tag for each word."""
