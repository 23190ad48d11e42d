"""Starting from the parameters of another model."""
