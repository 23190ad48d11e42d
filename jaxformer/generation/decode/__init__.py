"""The compiled loop: prefill, decode steps, beams, speculation."""
