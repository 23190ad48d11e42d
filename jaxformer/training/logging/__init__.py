"""Logs, reports and pictures of a run."""
