"""Training objectives: the inputs that are made of a text, and the targets."""
