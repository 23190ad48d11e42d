"""``jaxformer lab diagram``: draws the architecture of a config with its shapes."""
