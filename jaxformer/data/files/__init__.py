"""Finds, decompresses and parses the files of data."""
