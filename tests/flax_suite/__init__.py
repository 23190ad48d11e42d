"""Runs the tests that transformers 4.55 had for its Flax classes on `jaxformer.flax`."""
