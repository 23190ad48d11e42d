"""The interface of the Flax classes in transformers 4.55: arguments, outputs, configs."""
