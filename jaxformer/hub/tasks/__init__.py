"""The heads, outputs and losses of the classes of transformers."""
