"""The experts of a trained model: load, tokens, and routing entropy."""
