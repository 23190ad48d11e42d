"""Which tokens of a conversation a model learns."""
