"""What callers of the Flax classes of transformers 4.55 see: arguments, outputs, configs."""
