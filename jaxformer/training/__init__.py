"""Training: the step, the loss, the training loop, evaluation, logging and transfer."""
