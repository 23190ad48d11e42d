"""``jaxformer lab positions``: compares positional schemes in figures and numbers."""
