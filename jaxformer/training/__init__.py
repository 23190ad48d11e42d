"""Training: the step, its optimizer and state, the loop around it, checkpoints and reports."""
