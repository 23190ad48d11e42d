"""Run folders and their checkpoints: saving, verifying, selecting and restoring."""
