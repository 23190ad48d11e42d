"""Generation: from a prompt and the model's logits to text."""
