"""Run folders and the checkpoints in them: saved, verified, chosen, restored."""
