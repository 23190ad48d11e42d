"""Generation: from prompts to tokens and texts."""
