"""Views of the tensors of a folder under other names."""
