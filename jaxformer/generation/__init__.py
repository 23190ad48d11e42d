"""Generation: from a prompt to text that a model writes, token by token."""
