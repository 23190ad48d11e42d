"""Commands that train, evaluate and inspect runs."""
