"""Exports for other engines, and receipts that compare their outputs."""
