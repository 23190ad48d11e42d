"""The experts of a trained model: their load, their tokens, and the entropy of the routing."""
