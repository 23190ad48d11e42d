"""Seeded faults that the quick suite has to catch: docs/testing.md."""
