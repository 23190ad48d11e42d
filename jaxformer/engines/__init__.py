"""Exports that other engines run, and receipts that they compute the same."""
