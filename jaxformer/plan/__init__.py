"""Estimates memory, time and the slice that a training job needs, before it runs."""
