"""Training: the step, the loss, the loop around them, evaluation, logs and transfer."""
