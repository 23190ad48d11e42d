"""Logs, reports and plots of a run."""
